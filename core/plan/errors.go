package plan

import (
	"errors"
	"fmt"
	"math"
)

// InfeasibleError says which constraint cannot be met, and by how much it is missed.
type InfeasibleError struct {
	Constraint      string // such as "memory of sub-cluster 3"
	Needed, Allowed float64
	Unit            string // of both, such as "bytes"
}

func (e *InfeasibleError) Error() string {
	return fmt.Sprintf("plan: %s: %.6g %s needed, %.6g allowed: %.6g too much", e.Constraint, e.Needed, e.Unit, e.Allowed, e.Needed-e.Allowed)
}

// ServiceError says what a service of an AssignmentProblem needs that it cannot have.
type ServiceError struct {
	Service int
	Err     *InfeasibleError
}

func (e *ServiceError) Error() string { return fmt.Sprintf("service %d: %v", e.Service, e.Err) }

func (e *ServiceError) Unwrap() error { return e.Err }

// numberAnew gives the service of an error the number that it has in another problem.
func numberAnew(err error, numbers []int) error {
	if of, ok := errors.AsType[*ServiceError](err); ok {
		return &ServiceError{numbers[of.Service], of.Err}
	}
	return err
}

// ModelsError says what a model of a Snapshot needs that it cannot have, or models that share parameters.
type ModelsError struct {
	Models []int32
	Err    *InfeasibleError
}

func (e *ModelsError) Error() string { return fmt.Sprintf("models %d: %v", e.Models, e.Err) }

func (e *ModelsError) Unwrap() error { return e.Err }

// PoolError says why the models of a pool cannot be placed. GPUs are the pool's.
type PoolError struct {
	GPUs []int32
	Err  error
}

func (e *PoolError) Error() string {
	return fmt.Sprintf("pool of %d GPUs, the first of them %d: %v", len(e.GPUs), e.GPUs[0], e.Err)
}

func (e *PoolError) Unwrap() error { return e.Err }

// refuse returns an error that names the field, the value and the allowed values.
func refuse(field string, value any, want string) error {
	return fmt.Errorf("plan: %s is %v, want %s", field, value, want)
}

// finite reports whether a number is neither NaN nor infinite and at least 0.
func finite(x float64) bool { return x >= 0 && x <= math.MaxFloat64 }
