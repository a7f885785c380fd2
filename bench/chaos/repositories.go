//go:build linux

package chaos

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// repositoryExperiments have repositories that differ, are broken, or lie on a full disk (finding E).
func repositoryExperiments() []Experiment {
	return []Experiment{
		{Name: "upgrade-one-by-one", Promise: "a rolling upgrade keeps all capacity", Run: upgrade},
		{Name: "repository-broken-on-one", Promise: "a model that is broken on one host costs the others nothing", Run: brokenModel},
		{Name: "backends-of-one-name", Promise: "metrics work even if two backends have one name", Run: sameNames},
		{Name: "disk-full", Promise: "a repository on a full disk is served", Run: fullDisk},
	}
}

// upgrade restarts four backends one by one with a new version of an unrequested model, at half load.
func upgrade(w *World) Observation {
	m := light(64)
	other := light(128)
	before := w.Repository("before", m, other)

	// The new version changes the repository's list of models, not the requested model.
	other.Versions = []int{1, 2}
	after := w.Repository("after", m, other)

	w.StartSchedulers(1)
	all := w.StartBackends(4, before)
	c := w.StartCaller(0, Load{m, 800, 100 * time.Millisecond})
	time.Sleep(time.Second)

	from := now()
	failed := 0
	for i := range all {
		check(all[i].stop(patience))
		all[i] = w.StartBackend(i, after)
		time.Sleep(700 * time.Millisecond)

		// The cluster has two versions now, which must not break the metrics page.
		if status, _, err := w.get(schedulerHost, metricsPort, "/metrics"); status != 200 || err != nil {
			failed++
		}
	}

	fallSilent(200*time.Millisecond, c)
	return Observation{Measures: []Measure{atLeast("good %", c.between(from, now()).Percent(), 99), atMost("/metrics that failed", float64(failed), 0)}}
}

func brokenModel(w *World) Observation {
	m, other := light(64), light(128)
	models := w.Repository("models", m, other)
	broken := w.Repository("broken", m, other)

	// An unclosed quote is a syntax error: the model cannot be read at all.
	check(os.WriteFile(filepath.Join(broken, other.Name, "config.pbtxt"), []byte(`max_batch_size: "many`), 0o644))

	w.StartSchedulers(1)
	all := w.StartBackends(2, models)
	c := w.StartCaller(0, Load{m, 500, 100 * time.Millisecond})
	time.Sleep(time.Second)

	// The healthy host keeps serving; the other one restarts with the broken repository.
	check(all[0].stop(patience))
	all[0] = w.StartBackend(0, broken)
	time.Sleep(time.Second)

	from := now()
	time.Sleep(3 * time.Second)
	fallSilent(200*time.Millisecond, c)

	status, _, _ := w.get(schedulerHost, metricsPort, "/metrics")
	named := 0
	if strings.Contains(all[0].log.String(), other.Name) {
		named = 1
	}
	return Observation{Measures: []Measure{atLeast("good %", c.between(from, now()).Percent(), 99),
		atMost("status of /metrics", float64(status), 200), atLeast("the log names the model", float64(named), 1)}}
}

func sameNames(w *World) Observation {
	m := light(64)
	models := w.Repository("models", m)

	w.StartSchedulers(1)

	// Two backends of one name must not give the metrics page the same series twice.
	for i := range 2 {
		w.addHost(backendHost + i)
		w.StartBackend(i, models, "-name", "same")
	}
	c := w.StartCaller(0, Load{m, 200, 100 * time.Millisecond})
	time.Sleep(2 * time.Second)
	status, _, err := w.get(schedulerHost, metricsPort, "/metrics")
	check(err)
	return Observation{Measures: []Measure{atLeast("good %", c.between(0, now()-int64(200*time.Millisecond)).Percent(), 98), atMost("status of /metrics", float64(status), 200)}}
}

// fullDisk fills a repository's disk, and starts a backend from it.
func fullDisk(w *World) Observation {
	m := light(64)
	dir := filepath.Join(w.dir, "disk")
	check(os.MkdirAll(dir, 0o755))
	check(unix.Mount("tmpfs", dir, "tmpfs", 0, "size=128k"))
	defer func() { check(unix.Unmount(dir, unix.MNT_DETACH)) }()
	models := w.Repository("disk/models", m)

	w.StartSchedulers(1)
	backend := w.StartBackends(1, models)[0]
	c := w.StartCaller(0, Load{m, 100, 100 * time.Millisecond})

	fill, err := os.Create(filepath.Join(dir, "fill"))
	check(err)
	defer fill.Close()
	for block := make([]byte, 4096); err == nil; _, err = fill.Write(block) {
	}

	// The backend must restart although nothing can be written beside its models.
	check(backend.stop(patience))
	w.StartBackend(0, models)
	from := now()
	time.Sleep(1500 * time.Millisecond)
	return Observation{Measures: []Measure{atLeast("good %", c.between(from+int64(500*time.Millisecond), now()-int64(200*time.Millisecond)).Percent(), 98)}}
}
