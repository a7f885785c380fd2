package frontend_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
	"downbeat.dev/internal/sicklink"
)

// TestInferReturnsAtItsDeadlineWhateverAReaderDoes shows that Infer returns when its context ends, although a backend
// is still reading the input over a path that is slow or cut for longer than the test. The buffer belongs to the
// caller from then on.
func TestInferReturnsAtItsDeadlineWhateverAReaderDoes(t *testing.T) {
	big := double
	big.Inputs = []model.Tensor{{Name: "x", Datatype: "UINT8", Shape: []int64{16 << 20}}}
	for name, rate := range map[string]int{"slow": 100 << 10, "dark": sicklink.Dark} {
		t.Run(name, func(t *testing.T) {
			own := sicklink.FreeAddr(t)
			path := sicklink.Open(t, own)
			const never = time.Hour // for the data plane to cut a silent peer
			c, s := open(t, doubled, frontend.Options{Data: frontend.DataPlane{Listen: own, Advertise: path.Addr(), Providers: []string{"tcp"}, Stall: never}}, big)
			b := input(t, c, make([]byte, 16<<20)...)
			path.Set(sicklink.Well, rate)

			ended := make(chan error, 1)
			go func() {
				ended <- inShort(func(ctx context.Context) error { _, err := c.Infer(ctx, "double", b); return err })
			}()
			select {
			case err := <-ended:
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("an input that cannot have been read: %v, want %v", err, context.DeadlineExceeded)
				}
			case <-time.After(20 * time.Second):
				t.Error("Infer with 200 ms has not returned after 20 s")
			}

			clear(b.Bytes())
			path.Set(sicklink.Well, sicklink.Well) // or the backend of the test reads for minutes
			wait(t, func() bool { return s.Submits() > 0 })
		})
	}
}
