package models

import (
	"downbeat.dev/backend/train"
	"downbeat.dev/models/scene"
)

// Recipe defines how one model is made.
type Recipe struct {
	Family  string // detector, vehicle, activity
	Variant string // s, m, l
	Steps   int
	Batch   int
	Rate    float64 // peak learning rate
	SLO     int     // ms, parameter slo_ms
	net     func() train.Net
	data    source
}

// Name returns the model's name in the repository.
func (r Recipe) Name() string { return r.Family + "-" + r.Variant }

// Size returns the height and width, in pixels, of the model's images.
func (r Recipe) Size() (h, w int) { return r.data.imageSize() }

// Labels returns the class names.
func (r Recipe) Labels() []string { return r.data.labels() }

// Find returns the recipe of the model of that name.
func Find(name string) (Recipe, bool) {
	for _, r := range Recipes() {
		if r.Name() == name {
			return r, true
		}
	}
	return Recipe{}, false
}

// Net returns the trained network without early exits.
func (r Recipe) Net() train.Net { return r.net() }

// Structure returns the network with its early exits.
func (r Recipe) Structure() train.Net {
	n := r.net()
	n.Exits = exitsOf(n, r)
	return n
}

// Cost returns the cost of one inference.
func (r Recipe) Cost() train.Cost { return r.net().Cost() }

// BatchMax is every model's max_batch_size.
const BatchMax = 16

// Image sizes in pixels, height and width.
const (
	detectorSize         = 96
	vehicleHeight        = 32
	vehicleWidth         = 48
	activityHeight       = 48
	activityWidth        = 32
	cellSize             = 8 // of the detector's grid
	cells                = detectorSize / cellSize
	kinds          int64 = int64(scene.KindCount)
	activities     int64 = int64(scene.ActivityCount)
	vehicles       int64 = int64(scene.VehicleClasses)
)

// Recipes returns all recipes, family by family, small to large.
func Recipes() []Recipe {
	return []Recipe{
		{"detector", "s", 2500, 16, 4e-3, 100, detectorS, streets{}},
		{"detector", "m", 2500, 16, 3e-3, 100, detectorM, streets{}},
		{"detector", "l", 3000, 16, 2e-3, 100, detectorL, streets{}},
		{"vehicle", "s", 1500, 32, 5e-3, 50, vehicleS, vehicleCrops{}},
		{"vehicle", "m", 2000, 32, 4e-3, 50, vehicleM, vehicleCrops{}},
		{"vehicle", "l", 2000, 32, 2e-3, 50, vehicleL, vehicleCrops{}},
		{"activity", "s", 2000, 32, 5e-3, 50, activityS, activityCrops{}},
		{"activity", "m", 2500, 32, 4e-3, 50, activityM, activityCrops{}},
		{"activity", "l", 3000, 32, 2e-3, 50, activityL, activityCrops{}},
	}
}

func conv(out, stride int64) train.Layer { return &train.Conv{Out: out, K: 3, Stride: stride} }

func residualBlock(channels int64) train.Layer {
	return &train.Residual{Body: []train.Layer{conv(channels, 1), &train.Conv{Out: channels, K: 3, Stride: 1, Linear: true}}}
}

func detectorNet(name string, body ...train.Layer) train.Net {
	// A cell outputs an objectness, a score per kind, and four numbers of its box.
	body = append(body, &train.Conv{Out: kinds + 5, K: 1, Stride: 1, Linear: true})
	return train.Net{Name: name, H: detectorSize, W: detectorSize, Body: body, Head: train.Grid{N: kinds}}
}

func detectorS() train.Net {
	return detectorNet("detector-s", conv(8, 2), conv(16, 2), conv(32, 2), conv(32, 1), conv(32, 1))
}

func detectorM() train.Net {
	return detectorNet("detector-m", conv(12, 2), conv(24, 2), conv(48, 2), conv(64, 1), conv(64, 1), conv(64, 1))
}

func detectorL() train.Net {
	return detectorNet("detector-l", conv(16, 2), conv(32, 2), residualBlock(32), conv(64, 2), residualBlock(64), residualBlock(64), conv(96, 1))
}

func classifierNet(name string, h, w, classes int64, body ...train.Layer) train.Net {
	body = append(body, &train.Flatten{}, &train.Dense{Out: classes, Linear: true})
	return train.Net{Name: name, H: h, W: w, Body: body, Head: train.Classes{N: classes}}
}

// The classifiers flatten the last feature map instead of averaging it: the position of a limb or a window says more
// than its existence.

func smallNet(name string, h, w, classes int64) train.Net {
	return classifierNet(name, h, w, classes, conv(12, 2), conv(24, 2), conv(32, 2), conv(48, 2))
}

func mediumNet(name string, h, w, classes int64) train.Net {
	return classifierNet(name, h, w, classes, conv(16, 2), conv(32, 2), conv(64, 2), conv(64, 1), conv(64, 2))
}

func largeNet(name string, h, w, classes int64) train.Net {
	return classifierNet(name, h, w, classes, conv(24, 2), conv(48, 2), residualBlock(48), conv(96, 2), residualBlock(96), conv(64, 2))
}

// vehicleS is smaller than the other small nets: vehicles are easier to tell apart than activities.
func vehicleS() train.Net {
	return classifierNet("vehicle-s", vehicleHeight, vehicleWidth, vehicles, conv(8, 2), conv(12, 2), conv(16, 2), conv(24, 2))
}

func vehicleM() train.Net { return mediumNet("vehicle-m", vehicleHeight, vehicleWidth, vehicles) }
func vehicleL() train.Net { return largeNet("vehicle-l", vehicleHeight, vehicleWidth, vehicles) }

func activityS() train.Net { return smallNet("activity-s", activityHeight, activityWidth, activities) }
func activityM() train.Net { return mediumNet("activity-m", activityHeight, activityWidth, activities) }
func activityL() train.Net { return largeNet("activity-l", activityHeight, activityWidth, activities) }
