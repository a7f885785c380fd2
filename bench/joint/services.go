package joint

import (
	"fmt"
	"time"

	"downbeat.dev/core/profile"
	"downbeat.dev/core/sim"
)

// The cluster: GPUs of two kinds with profiles published by Symphony (tables 5 and 6).
const (
	oldGPUs = 8 // GTX 1080 Ti
	newGPUs = 8 // A100
	gpus    = oldGPUs + newGPUs
	kinds   = 2

	batchMax = 64
)

// network is one way to answer a service's requests.
type network struct {
	name     string
	accuracy float64 // relative to the service's best, as in Proteus
	profiles [kinds]*profile.Profile
}

// service is the target of requests: a family, or a stage of an application.
type service struct {
	name     string
	networks []network // best first
	slo      time.Duration
	rate     float64 // requests/s at unit load outside sessions; 0: all come from sessions
}

// member is a variant of a family: a network of the zoos, and its published top-1 accuracy in percent (Keras
// Applications).
type member struct {
	name string
	top1 float64
}

// families have clients of their own. Their SLOs and rates are stated here.
var families = []struct {
	name    string
	slo     time.Duration
	rate    float64
	members []member
}{
	{"mobile", 15 * time.Millisecond, 3000, []member{{"MobileNetV3Large", 75.6}, {"MobileNetV2", 71.3}, {"MobileNet", 70.4}}},
	{"resnet", 50 * time.Millisecond, 1500, []member{{"ResNet152V2", 78.0}, {"ResNet101V2", 77.2}, {"ResNet50V2", 76.0}}},
	{"efficient", 100 * time.Millisecond, 500, []member{{"EfficientNetB4", 82.9}, {"EfficientNetB3", 81.6}, {"EfficientNetB2", 80.1}, {"EfficientNetB1", 79.1}, {"EfficientNetB0", 77.1}}},
	{"efficient2", 200 * time.Millisecond, 250, []member{{"EfficientNetV2M", 85.3}, {"EfficientNetV2S", 83.9}, {"EfficientNetV2B3", 82.0}, {"EfficientNetV2B1", 79.8}, {"EfficientNetV2B0", 78.7}}},
}

// stages are the models of the applications. A light detector takes two thirds of the time, as in bench/sessions;
// vehicle and activity are the drifting models, with a single network each.
var stages = map[string][]member{
	"detect":   {{"SSDMobilenet", 90}, {lightDetector, 80}},
	"vehicle":  {{"ResNet50", 1}},
	"activity": {{"ResNet50", 1}},
	"find":     {{"EfficientNetV2S", 83.9}, {"EfficientNetV2B3", 82.0}},
	"pose":     {{"ResNet101", 76.4}, {"ResNet50", 74.9}},
}

const (
	lightDetector = "SSDMobilenet light"
	lightShare    = 2.0 / 3
)

// module is a stage of an application.
type module struct {
	name   string
	fanOut int
	fixed  time.Duration // on a processor, before it
	after  []int
}

// application is a graph through which sessions send frames.
type application struct {
	name     string
	latency  time.Duration
	sessions int // at unit load
	modules  []module
	first    int // index of its first module among the services
}

// applications are AdaInf's and Rim's street, and Rim's poses. Sessions and latencies are stated here.
func applications() []application {
	const ms = time.Millisecond
	return []application{
		{name: "traffic", latency: 400 * ms, sessions: 20, modules: []module{
			{"detect", 1, 5 * ms, nil}, {"vehicle", 2, 2 * ms, []int{0}}, {"activity", 2, 2 * ms, []int{0}}}},
		{name: "poses", latency: 200 * ms, sessions: 16, modules: []module{
			{"find", 1, 5 * ms, nil}, {"pose", 2, 3 * ms, []int{0}}}},
	}
}

// drifting reports whether a service's model drifts.
func drifting(name string) bool { return name == "vehicle" || name == "activity" }

// listServices returns all services, families first, and the applications, whose modules are numbered among them.
func listServices() ([]service, []application, error) {
	var all []service
	for _, f := range families {
		s, err := newService(f.name, f.slo, f.members)
		if err != nil {
			return nil, nil, err
		}
		s.rate = f.rate
		all = append(all, s)
	}

	apps := applications()
	for i := range apps {
		apps[i].first = len(all)
		for _, m := range apps[i].modules {
			// A stage's time is known after the latency is divided.
			s, err := newService(m.name, apps[i].latency, stages[m.name])
			if err != nil {
				return nil, nil, err
			}
			all = append(all, s)
		}
	}
	return all, apps, nil
}

func newService(name string, slo time.Duration, members []member) (service, error) {
	s := service{name: name, slo: slo}
	for _, m := range members {
		n := network{name: m.name, accuracy: m.top1 / members[0].top1}
		for kind, zoo := range [kinds][]profile.Entry{profile.GTX1080Ti(), profile.A100()} {
			p, err := profileIn(zoo, m.name)
			if err != nil {
				return s, fmt.Errorf("service %s on kind %d: %w", name, kind, err)
			}
			n.profiles[kind] = p
		}
		s.networks = append(s.networks, n)
	}
	return s, nil
}

// profileIn returns a network's ℓ(b) in a zoo.
func profileIn(zoo []profile.Entry, name string) (*profile.Profile, error) {
	// No zoo has the light detector: use the other one's profile, scaled.
	share := 1.0
	if name == lightDetector {
		name, share = "SSDMobilenet", lightShare
	}
	for _, e := range zoo {
		if e.Name == name {
			return profile.Linear(time.Duration(share*float64(e.Alpha)), time.Duration(share*float64(e.Beta)), batchMax)
		}
	}
	return nil, fmt.Errorf("network %q: want one of the zoo's %d", name, len(zoo))
}

// kindOf returns the kind of a GPU: the old ones come first.
func kindOf(gpu int) int {
	if gpu < oldGPUs {
		return 0
	}
	return 1
}

// modelWith returns a service as a World's model, with some of its networks.
func (s *service) modelWith(networks []network) sim.Model {
	m := sim.Model{Name: s.name, SLO: sim.Duration(s.slo)}
	for _, n := range networks {
		m.Variants = append(m.Variants, sim.Variant{Name: n.name, Accuracy: n.accuracy, Profiles: n.profiles[:]})
	}
	return m
}
