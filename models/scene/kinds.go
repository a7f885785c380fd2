package scene

import "fmt"

// Kind is the kind of an object. The order is that of the detector's classes.
type Kind uint8

// The kinds. Bicycles and motorcycles have riders.
const (
	Person Kind = iota
	Car
	Van
	Truck
	Bus
	Bicycle
	Motorcycle
	KindCount
)

var kindNames = [KindCount]string{"person", "car", "van", "truck", "bus", "bicycle", "motorcycle"}

// String returns the class name.
func (k Kind) String() string {
	if k < KindCount {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// VehicleClasses is the number of classes of a vehicle classifier: every kind except Person, in order.
const VehicleClasses = int(KindCount) - 1

// Vehicle returns the kind of a vehicle classifier's class.
func Vehicle(class int) Kind { return Kind(class + 1) }

// Activity is the activity of a person.
type Activity uint8

// The activities. Cycling is the activity of a Bicycle's rider only.
const (
	Standing Activity = iota
	Walking
	Running
	Sitting
	Cycling
	Waving
	ActivityCount
)

var activityNames = [ActivityCount]string{"standing", "walking", "running", "sitting", "cycling", "waving"}

// String returns the class name.
func (a Activity) String() string {
	if a < ActivityCount {
		return activityNames[a]
	}
	return fmt.Sprintf("activity %d", uint8(a))
}
