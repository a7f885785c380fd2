package repo

import "math"

// InstanceGroup is Triton's request for executors of a model. It is read only to find errors in it; a backend's
// options determine the executors.
type InstanceGroup struct {
	Kind  string // KIND_AUTO, KIND_CPU, KIND_GPU or KIND_MODEL
	Count int
	GPUs  []int
}

// VersionPolicy selects the versions of a model that are served.
type VersionPolicy struct {
	Latest   int     // the newest n; 0: another kind of policy
	All      bool    // every version
	Specific []int64 // exactly these
}

func (d *decoder) instanceGroup(out *[]InstanceGroup) func(value) error {
	return func(v value) error {
		if len(*out) == groupsMax {
			return d.failAt(v, "instance_group", "a model may have at most %d", groupsMax)
		}

		g := InstanceGroup{Kind: "KIND_AUTO", Count: 1}
		err := d.decodeFields(v.sub, "instance_group", rules{
			"name":              d.ignoredField("executors are named by their GPU or core"),
			"kind":              {read: d.readEnum(&g.Kind, "KIND_AUTO", "KIND_CPU", "KIND_GPU", "KIND_MODEL")},
			"count":             {read: d.readInteger(&g.Count, 1, 1024)},
			"gpus":              {read: d.readIntegers(&g.GPUs, 0, 1023), repeated: true},
			"rate_limiter":      d.ignoredField("the scheduler shares the GPUs among models by their deadlines"),
			"secondary_devices": d.ignoredField("there is none"),
			"profile":           d.ignoredField("it chooses among TensorRT's"),
			"passive":           d.ignoredField("every executor takes batches"),
			"host_policy":       d.ignoredField("-cores of a backend pins its executors"),
		}, v)

		if g.Count > 1 {
			d.warnUnused(v, "instance_group.count", "every executor of a backend runs every model; -executors says how many there are")
		}
		if len(g.GPUs) > 0 {
			d.warnUnused(v, "instance_group.gpus", "every GPU of a backend runs every model")
		}
		if g.Kind != "KIND_AUTO" {
			d.warnUnused(v, "instance_group.kind", "the backend's options say whether GPUs or the processor run models")
		}
		*out = append(*out, g)
		return err
	}
}

func (d *decoder) versionPolicy(out *VersionPolicy) func(value) error {
	return func(v value) error {
		var chosen int

		// The policy is a oneof in Triton's message: two would contradict each other.
		one := func(read func(value) error) func(value) error {
			return func(v value) error {
				if chosen++; chosen > 1 {
					return d.failAt(v, "version_policy", "want only one of latest, all, specific")
				}
				return read(v)
			}
		}

		return d.decodeFields(v.sub, "version_policy", rules{
			"latest": {read: one(func(v value) error {
				out.Latest = 1
				return d.decodeFields(v.sub, "version_policy.latest", rules{"num_versions": {read: d.readInteger(&out.Latest, 1, 1024)}}, v)
			})},
			"all": {read: one(func(v value) error {
				out.All = true
				return d.decodeFields(v.sub, "version_policy.all", rules{}, v)
			})},
			"specific": {read: one(func(v value) error {
				var list []int

				err := d.decodeFields(v.sub, "version_policy.specific", rules{"versions": {read: d.readIntegers(&list, 1, math.MaxInt64), repeated: true}}, v)
				for _, n := range list {
					out.Specific = append(out.Specific, int64(n))
				}
				if err == nil && len(list) == 0 {
					return d.failAt(v, "version_policy.specific", "names no versions")
				}
				return err
			})},
		}, v)
	}
}
