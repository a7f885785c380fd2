package repo

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// DynamicBatching is the part of Triton's dynamic_batching that is compatible with deadlines.
type DynamicBatching struct {
	PreferredBatch []int         // read only to find errors in it
	MaxQueueDelay  time.Duration // likewise
	Levels         int           // priority_levels; 0: left out
	DefaultLevel   int           // default_priority_level, 1 the highest; 0: left out
	Timeout        time.Duration // of the default queue policy: the SLO of a model without slo_ms; 0: none
	QueueMax       int           // of the default queue policy; 0: the scheduler's
}

// levelMax is the lowest priority level of requests; lower ones are raised to it.
const levelMax = 255

// Priority returns the priority of a request without a level, as requests carry it: higher is kept longer, 0 is the
// lowest.
func (b DynamicBatching) Priority() uint8 {
	if b.DefaultLevel == 0 {
		return 0
	}

	// Triton counts levels down from 1, the highest. Requests carry a number that is higher for more important ones.
	return uint8(levelMax + 1 - min(b.DefaultLevel, levelMax))
}

func (d *decoder) dynamicBatching(out *DynamicBatching) func(value) error {
	return func(v value) error {
		var delay int
		err := d.decodeFields(v.sub, "dynamic_batching", rules{
			"preferred_batch_size":         {read: d.readIntegers(&out.PreferredBatch, 1, BatchMaxLimit), repeated: true},
			"max_queue_delay_microseconds": {read: d.readInteger(&delay, 0, int(sloMax/time.Microsecond))},
			"preserve_ordering":            {read: d.preserveOrdering()},
			"priority_levels":              {read: d.readInteger(&out.Levels, 0, math.MaxInt)},
			"default_priority_level":       {read: d.readInteger(&out.DefaultLevel, 0, math.MaxInt)},
			"default_queue_policy":         {read: d.queuePolicy(out)},
			"priority_queue_policy":        d.ignoredField("default_queue_policy holds for every level"),
		}, v)
		if err != nil {
			return err
		}

		out.MaxQueueDelay = time.Duration(delay) * time.Microsecond

		if len(out.PreferredBatch) > 0 {
			d.warnUnused(v, "dynamic_batching.preferred_batch_size", "a batch grows as long as the deadlines of its requests leave")
		}
		if delay > 0 {
			d.warnUnused(v, "dynamic_batching.max_queue_delay_microseconds", "a batch waits as long as the deadlines of its requests leave; a shorter SLO (parameter slo_ms) shortens it")
		}
		if out.Levels > levelMax {
			d.warnUnused(v, "dynamic_batching.priority_levels", fmt.Sprintf("levels beyond %d count as %d", levelMax, levelMax))
		}

		// As in Triton, a default level needs priority_levels.
		switch {
		case out.Levels > 0 && (out.DefaultLevel < 1 || out.DefaultLevel > out.Levels):
			return d.failAt(value{at: v.at}, "dynamic_batching.default_priority_level", "%d: want 1 to priority_levels, %d", out.DefaultLevel, out.Levels)
		case out.Levels == 0 && out.DefaultLevel > 0:
			return d.failAt(value{at: v.at}, "dynamic_batching.default_priority_level", "%d: want priority_levels as well", out.DefaultLevel)
		}
		return nil
	}
}

// preserveOrdering warns if the field would change what clients see.
func (d *decoder) preserveOrdering() func(value) error {
	return func(v value) error {
		if isTrue(v) {
			d.warnUnused(v, "dynamic_batching.preserve_ordering", "answers leave as they are done; those of a stream carry their request's id")
			return nil
		}
		return d.mustBeFalse("")(v)
	}
}

func isTrue(v value) bool {
	switch v.text {
	case "true", "True", "t", "1":
		return v.sub == nil
	}
	return false
}

// queuePolicy reads the default queue policy. Its timeout becomes the model's SLO, which limits callers' deadlines;
// late requests are dropped.
func (d *decoder) queuePolicy(out *DynamicBatching) func(value) error {
	return func(v value) error {
		const where = "dynamic_batching.default_queue_policy"
		var action string
		var timeout int
		err := d.decodeFields(v.sub, where, rules{
			"timeout_action":               {read: d.readEnum(&action, "REJECT", "DELAY")},
			"default_timeout_microseconds": {read: d.readInteger(&timeout, 0, int(sloMax/time.Microsecond))},
			"allow_timeout_override":       {read: d.readOverride()},
			"max_queue_size":               {read: d.readInteger(&out.QueueMax, 0, math.MaxInt32)},
		}, v)

		if action == "DELAY" {
			d.warnUnused(v, where+".timeout_action", "a request that can no longer meet its deadline is dropped")
		}
		out.Timeout = time.Duration(timeout) * time.Microsecond
		return err
	}
}

// readOverride reads allow_timeout_override, which is always in force.
func (d *decoder) readOverride() func(value) error {
	return func(v value) error {
		if isTrue(v) {
			return nil
		}
		d.warnUnused(v, "dynamic_batching.default_queue_policy.allow_timeout_override", "a request's own timeout holds where it is the earlier one")
		return d.mustBeFalse("")(v)
	}
}

// transactionPolicy refuses decoupled models: every request has exactly one answer.
func (d *decoder) transactionPolicy() func(value) error {
	return func(v value) error {
		return d.decodeFields(v.sub, "model_transaction_policy", rules{
			"decoupled": {read: d.mustBeFalse("decoupled models are not supported: every request has one answer")},
		}, v)
	}
}

// responseCache warns that there is no response cache.
func (d *decoder) responseCache() func(value) error {
	return func(v value) error {
		return d.decodeFields(v.sub, "response_cache", rules{"enable": {read: func(v value) error {
			if isTrue(v) {
				d.warnUnused(v, "response_cache.enable", "no cache is kept: every request runs")
				return nil
			}
			return d.mustBeFalse("")(v)
		}}}, v)
	}
}

// ownParameters are the parameters that Downbeat uses, and notes of the models in this tree.
var ownParameters = map[string]bool{"slo_ms": true, "slo_binds": true, "bytes_max": true, "shapes_max": true, "precision": true, "alpha_ms": true, "beta_ms": true, "gpu_use": true,
	"family": true, "variant": true, "accuracy": true, "seed": true,
	paramPicture: true, paramChannels: true, paramScale: true, paramMean: true, paramStd: true, paramShorterSide: true}

// ortParameters are the parameters of Triton's ONNX Runtime backend.
var ortParameters = []string{"intra_op_thread_count", "inter_op_thread_count", "execution_mode", "enable_mem_arena", "enable_mem_pattern",
	"memory.enable_memory_arena_shrinkage", "session.", "optimization.", "ep.", "cudnn_", "gpu_mem_limit", "arena_extend_strategy"}

// warnParameters warns about parameters of Triton's backend that would change how a model runs. Other unknown
// parameters are notes of their authors.
func (d *decoder) warnParameters(params map[string]value) {
	for _, key := range slices.Sorted(maps.Keys(params)) {
		if ownParameters[key] {
			continue
		}
		for _, prefix := range ortParameters {
			if strings.HasPrefix(key, prefix) {
				d.warnUnused(params[key], "parameters."+key, "an executor runs on one core, or GPU, with settings of its own")
				break
			}
		}
	}
}
