package gateway

import (
	"math"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"downbeat.dev/frontend"
)

// The response's parameters tell a caller of a family which model answered: for a call of several rows, the least
// accurate one.

// variant returns the result that names the variant which answered a call for a family; nil for a call for a model.
func (a *answer) variant(in *inference) *frontend.Result {
	if !in.model.IsFamily() || len(a.calls) == 0 {
		return nil
	}

	// Different variants may have answered the rows of one call.
	least := &a.calls[0].Result
	for i := range a.calls {
		if r := &a.calls[i].Result; r.Accuracy < least.Accuracy {
			least = r
		}
	}
	return least
}

// appendVariantJSON appends the response's parameters as JSON.
func appendVariantJSON(b []byte, r *frontend.Result) []byte {
	b = append(b, `,"parameters":{"variant":`...)
	b = appendQuoted(b, []byte(r.Model))
	b = append(b, `,"variant_version":`...)
	b = appendQuoted(b, []byte(r.Version))
	b = append(b, `,"accuracy":`...)
	b = strconv.AppendFloat(b, r.Accuracy, 'g', -1, 64)
	return append(b, '}')
}

// appendVariantProto appends the same parameters as entries of ModelInferResponse.parameters.
func appendVariantProto(b []byte, r *frontend.Result) []byte {
	b = appendParameter(b, "variant", appendString(nil, 3, r.Model))
	b = appendParameter(b, "variant_version", appendString(nil, 3, r.Version))
	accuracy := protowire.AppendTag(nil, 4, protowire.Fixed64Type)
	return appendParameter(b, "accuracy", protowire.AppendFixed64(accuracy, math.Float64bits(r.Accuracy)))
}

func appendParameter(b []byte, name string, value []byte) []byte {
	entry := protowire.AppendBytes(protowire.AppendTag(appendString(nil, 1, name), 2, protowire.BytesType), value)
	return protowire.AppendBytes(protowire.AppendTag(b, 4, protowire.BytesType), entry)
}

// takeFloor sets the accuracy floor from the request parameter accuracy_floor.
func (in *inference) takeFloor(floor float64) *fault {
	if !(floor >= 0 && floor <= 1) {
		return invalidFault("parameter accuracy_floor: %v: must be from 0 to 1", floor)
	}
	in.floor = floor
	return nil
}
