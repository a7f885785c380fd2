package backend

import "downbeat.dev/core/control"

// OpenWith opens the backend's session with a scheduler as Connect does, with the test's own events that watch the
// backend's.
func (b *Backend) OpenWith(open control.OpenBackend, watch func(control.BackendEvents) control.BackendEvents) (control.BackendLink, error) {
	link, err := open(b.Hello(), watch(events{b}))
	if err == nil {
		b.attach(link)
	}
	return link, err
}
