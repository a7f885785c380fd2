//go:build cgo

package train_test

import (
	"testing"

	"downbeat.dev/backend/train"
	"downbeat.dev/backend/train/traintest"
)

func TestContract(t *testing.T) {
	traintest.Contract(t, func(n train.Net, o train.Options) (train.Stepper, error) { return train.New(n, o) }, false)
}
