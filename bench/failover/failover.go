// Package failover measures the cost of losing the leading scheduler. It runs three schedulers, backends with
// emulated GPUs and a client as processes, at a share of the GPUs' capacity. It kills the leader repeatedly with kill
// -9; each time a standby takes over, and the killed scheduler returns as a standby.
package failover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"downbeat.dev/frontend"
)

// Config is the configuration of a measurement.
type Config struct {
	Kills    int           // of leaders
	Share    float64       // offered load, as a share of the GPUs' capacity
	SLO      time.Duration // of the requests that count for goodput
	Outlast  time.Duration // budget of the other requests, none of which may be lost
	Pause    time.Duration // between two kills
	Election string        // URL of the election; empty: a file
	Seed     uint64
	Child    string // the binary of every part
}

// The measured cluster.
const (
	schedulerCount = 3
	backendCount   = 2
	gpusEach       = 2
	alphaMS        = 4.0
	betaMS         = 10.0
	outlastShare   = 0.1 // share of requests with the longer budget
	settle         = 2 * time.Second
	takeOverMax    = 30 * time.Second
	restartAfter   = 500 * time.Millisecond // on few cores, an earlier restart would disturb the change of leader
)

// Check returns an error for an invalid configuration.
func (c Config) Check() error {
	switch {
	case c.Kills < 1 || c.Kills > 10_000:
		return fmt.Errorf("kills %d: want 1 to 10000", c.Kills)
	case !(c.Share > 0 && c.Share <= 1):
		return fmt.Errorf("share %v: want above 0 to 1", c.Share)
	case c.SLO < 20*time.Millisecond || c.SLO > 10*time.Second:
		return fmt.Errorf("slo %v: want 20ms to 10s", c.SLO)
	case c.Outlast <= c.SLO || c.Outlast > time.Minute:
		return fmt.Errorf("outlast %v: want more than the SLO, at most 1m", c.Outlast)
	case c.Pause < 200*time.Millisecond || c.Pause > time.Minute:
		return fmt.Errorf("pause %v: want 200ms to 1m", c.Pause)
	}
	return nil
}

// clusterCapacity returns the GPUs' capacity with staggered batches (DESIGN §5): N·b/ℓ(b) with the largest b for
// which (1 + 1/N)·ℓ(b) fits the SLO.
func (c Config) clusterCapacity() float64 {
	const n = backendCount * gpusEach
	exec := func(b int) float64 { return (alphaMS*float64(b) + betaMS) / 1e3 }

	b := 1
	for (1+1.0/n)*exec(b+1) <= c.SLO.Seconds() {
		b++
	}
	return n * float64(b) / exec(b)
}

// modelName is the repository's only model.
const modelName = "steady"

func (c Config) writeModel(dir string) error {
	text := fmt.Sprintf(`platform: "emulated" max_batch_size: 64
input [ { name: "x" data_type: TYPE_UINT8 dims: [ 1024 ] } ] output [ { name: "y" data_type: TYPE_UINT8 dims: [ 64 ] } ]
parameters { key: "alpha_ms" value { string_value: "%v" } } parameters { key: "beta_ms" value { string_value: "%v" } }
parameters { key: "slo_ms" value { string_value: "%d" } }`, alphaMS, betaMS, c.SLO.Milliseconds())

	if err := os.MkdirAll(filepath.Join(dir, modelName), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, modelName, "config.pbtxt"), []byte(text), 0o644)
}

// Run runs the measurement. It ends every process that it started.
func Run(ctx context.Context, c Config) (*Report, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}

	dir, err := os.MkdirTemp("", "failover")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := c.writeModel(dir); err != nil {
		return nil, err
	}

	if c.Election == "" {
		c.Election = "file://" + filepath.Join(dir, "leader")
	}

	cluster, err := startCluster(c, dir)
	if err != nil {
		return nil, err
	}
	defer cluster.stopAll()

	dial, cancel := context.WithTimeout(ctx, takeOverMax)
	defer cancel()
	client, err := frontend.Dial(dial, frontend.Options{Name: "failover", Scheduler: cluster.schedulerList()})
	if err != nil {
		return nil, err
	}
	defer client.Close()

	// Begin the load when the model can be served: earlier requests would count as lost to a kill.
	if err := awaitModel(dial, client); err != nil {
		return nil, err
	}

	load := startLoad(client, c)
	kills, err := cluster.killLeaders(ctx, c, load.began)
	sent := load.endLoad()
	if err != nil {
		return nil, err
	}
	r := newReport(c, kills, sent)

	// Add the processes' log lines around each lost request.
	for i := range r.LostRequests {
		q := &r.LostRequests[i]
		q.Said = cluster.said.between(load.began, q.at-around, q.ended+around/10)
	}
	return r, nil
}

func awaitModel(ctx context.Context, client *frontend.Client) error {
	for {
		if m := client.Model(modelName, ""); m != nil && m.Ready {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New("the model never became ready")
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// kill is one kill of a leader.
type kill struct {
	at  time.Duration // since the load began
	led time.Duration // until a standby logged that it leads
}

// killLeaders kills one leader after another and returns the data of each kill.
func (cl *cluster) killLeaders(ctx context.Context, c Config, began time.Time) ([]kill, error) {
	// Let the disturbance by the start of the parts end before the first kill.
	if err := pauseFor(ctx, settle); err != nil {
		return nil, err
	}
	var kills []kill
	for range c.Kills {
		old := cl.currentLeader()
		if old < 0 {
			return nil, errors.New("no scheduler leads")
		}

		k := kill{at: time.Since(began)}
		cl.schedulers[old].killPart()
		if err := cl.awaitLeader(ctx, old); err != nil {
			return nil, err
		}
		k.led = time.Since(began) - k.at
		kills = append(kills, k)

		if err := pauseFor(ctx, restartAfter); err != nil {
			return nil, err
		}
		if err := cl.startScheduler(old); err != nil {
			return nil, err
		}
		if err := pauseFor(ctx, c.Pause); err != nil {
			return nil, err
		}
	}
	return kills, nil
}

func pauseFor(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
