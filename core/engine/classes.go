package engine

import (
	"slices"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// A shape class of a model is a catalogue entry of its own. Backends load it when a frontend asks for it; the engine
// only makes a backend that joins later load the classes that others serve.

// shareClasses asks a backend to load the shape classes that others serve of a model that it has; of every model if
// name is empty. The backend reports the outcome.
func (g *registry) shareClasses(b *Backend, name string) {
	if b.hello.Version < commandVersion {
		return
	}
	for _, m := range g.models {
		if name != "" && m.info.Name != name || !m.served() {
			continue
		}
		version, class := model.SplitVersion(m.info.Version)
		if class == "" || b.hasLoaded(m.info.Name, m.info.Version) || !b.hasLoaded(m.info.Name, version) {
			continue
		}

		// The number is used by no frontend's command: nobody waits for the answer.
		g.lastCommand++
		b.port.Command([]wire.ModelCommand{{Number: g.lastCommand, Op: wire.AddShape, Model: m.info.Name, Version: version, Shape: class}})
	}
}

// hasLoaded reports whether the backend has a version of a model loaded.
func (b *Backend) hasLoaded(name, version string) bool {
	return slices.ContainsFunc(b.hello.Models, func(m wire.BackendModel) bool {
		return m.Info.Name == name && m.Info.Version == version && loadedSomewhere(&m)
	})
}
