package model

import (
	"fmt"
	"strings"
)

// Datatype names the type of a tensor's elements as the Open Inference Protocol does.
type Datatype string

// The datatypes. Elements are little-endian; BYTES elements vary in size (NextText).
const (
	Bool   Datatype = "BOOL" // one byte, 0 or 1
	Uint8  Datatype = "UINT8"
	Uint16 Datatype = "UINT16"
	Uint32 Datatype = "UINT32"
	Uint64 Datatype = "UINT64"
	Int8   Datatype = "INT8"
	Int16  Datatype = "INT16"
	Int32  Datatype = "INT32"
	Int64  Datatype = "INT64"
	FP16   Datatype = "FP16" // IEEE 754 binary16
	FP32   Datatype = "FP32"
	FP64   Datatype = "FP64"
	Bytes  Datatype = "BYTES"
	BF16   Datatype = "BF16" // the upper half of an FP32
)

// Datatypes returns all datatypes in the order of the protocol's enumeration DataType (model_config.proto), which
// numbers them from 1.
func Datatypes() []Datatype {
	return []Datatype{Bool, Uint8, Uint16, Uint32, Uint64, Int8, Int16, Int32, Int64, FP16, FP32, FP64, Bytes, BF16}
}

// ParseDatatype returns the datatype of a name. The error lists the known names.
func ParseDatatype(name string) (Datatype, error) {
	if t := Datatype(name); t.Known() {
		return t, nil
	}

	var names []string
	for _, t := range Datatypes() {
		names = append(names, string(t))
	}
	return "", fmt.Errorf("datatype %.40q: want one of %s", name, strings.Join(names, ", "))
}

// Size returns the bytes of one element; 0 for BYTES and for an unknown datatype.
func (t Datatype) Size() int {
	switch t {
	case Bool, Uint8, Int8:
		return 1
	case Uint16, Int16, FP16, BF16:
		return 2
	case Uint32, Int32, FP32:
		return 4
	case Uint64, Int64, FP64:
		return 8
	}
	return 0
}

// Known reports whether t is a datatype of the protocol.
func (t Datatype) Known() bool { return t == Bytes || t.Size() > 0 }

// Float reports whether the elements are floating-point numbers.
func (t Datatype) Float() bool { return t == FP16 || t == FP32 || t == FP64 || t == BF16 }
