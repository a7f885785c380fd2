package engine

import (
	"slices"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// A shape class of a model is an entry of its own, which backends load when a frontend asks for it. The engine only sees that
// a backend that comes later serves the classes that others have.

// shareClasses has a backend load the shape classes that others serve of a model that it has, of every such model if name is
// empty. What becomes of it the backend's reports say.
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

		// Nobody waits for the answer, which is not among the commands.
		g.lastCommand++
		b.port.Command([]wire.ModelCommand{{Number: g.lastCommand, Op: wire.AddShape, Model: m.info.Name, Version: version, Shape: class}})
	}
}

// hasLoaded says whether the backend has a version of a model loaded.
func (b *Backend) hasLoaded(name, version string) bool {
	return slices.ContainsFunc(b.hello.Models, func(m wire.BackendModel) bool {
		return m.Info.Name == name && m.Info.Version == version && loadedSomewhere(&m)
	})
}
