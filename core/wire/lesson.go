package wire

import "math"

// The samples of TeachModel are packed one after the other. Each has a head and then its input, all of the same length.
const (
	// LessonHead is the head's length: the class as u32. With a version its upper half is one more than the class that
	// this version answered; 0: not known.
	LessonHead = 4
	// SureHead is the length of a head that goes on with the probability that the version gave to the class
	// (PackProbability).
	SureHead = LessonHead + 2
)

// SureFits reports whether so many samples may have the longer head. They may not if samples with the short one could
// be as long together, since the length alone tells the two apart.
func SureFits(samples, input int) bool { return samples*(SureHead+input)%(LessonHead+input) != 0 }

// HeadOf returns the length of the heads of samples that are so many bytes long together.
func HeadOf(bytes, input int) int {
	if bytes%(LessonHead+input) != 0 && bytes%(SureHead+input) == 0 {
		return SureHead
	}
	return LessonHead
}

// probabilityOne is the packed probability 1.
const probabilityOne = math.MaxUint16

// PackProbability packs a probability from 0 to 1. The result 0 stands for one that is not known.
func PackProbability(p float32) uint16 { return 1 + uint16(p*(probabilityOne-1)+0.5) }

// UnpackProbability returns a packed probability, which is above 0; 0: it is not known.
func UnpackProbability(packed uint16) float32 { return float32(packed) / probabilityOne }
