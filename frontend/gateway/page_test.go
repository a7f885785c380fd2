package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"image/png"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"downbeat.dev/bench/stage"
	"downbeat.dev/core/observe"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/gateway/page"
)

func emulated(alpha, beta, slo string, batch string) string {
	return `platform: "emulated" max_batch_size: ` + batch + `
input [ { name: "image" data_type: TYPE_FP32 dims: [ 16 ] } ] output [ { name: "scores" data_type: TYPE_FP32 dims: [ 4 ] } ]
parameters { key: "alpha_ms" value { string_value: "` + alpha + `" } } parameters { key: "beta_ms" value { string_value: "` + beta + `" } }
parameters { key: "slo_ms" value { string_value: "` + slo + `" } }`
}

// wholeGateway returns a gateway over a scheduler and emulated GPUs, and its REST address.
func wholeGateway(t testing.TB, models map[string]string, gpus int) (*stage.Stage, string) {
	t.Helper()
	s, err := stage.Open(context.Background(), models, gpus)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	g := New(s.Client, Options{Version: "test", Process: watched(t, s)})
	go func() { ended <- g.Serve(ctx, ln, nil) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, "http://" + ln.Addr().String()
}

// watched returns a process that watches a stage's scheduler until the test ends.
func watched(t testing.TB, s *stage.Stage) *observe.Process {
	w := observe.Watch(s.Engine)
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	p := observe.NewProcess()
	p.SetScheduler(w)
	return p
}

// load sends requests for a while at uneven intervals over REST.
func load(t testing.TB, url, model string, rate float64, d time.Duration) {
	body := `{"inputs":[{"name":"image","shape":[1,16],"datatype":"FP32","data":[` + strings.Repeat("0,", 15) + `0]}]}`
	random := rand.New(rand.NewPCG(1, uint64(len(model))))
	var wait sync.WaitGroup
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Duration(random.ExpFloat64() / rate * float64(time.Second))) {
		wait.Go(func() { call(t, "POST", url+"/v2/models/"+model+"/infer", strings.NewReader(body)) })
	}
	wait.Wait()
}

func TestPageData(t *testing.T) {
	_, url := wholeGateway(t, map[string]string{"car": emulated("0.1", "1", "5000", "8")}, 1)
	load(t, url, "car", 200, 300*time.Millisecond)
	var d page.Data
	var text []byte
	ended, sized := uint64(0), uint64(0)
	until(t, func() bool { // the series' last second is complete, and the scheduler was sampled
		_, _, text = call(t, "GET", url+"/v2/downbeat/page", nil)
		d, ended, sized = page.Data{}, 0, 0
		if err := json.Unmarshal(text, &d); err != nil {
			t.Fatal(err)
		}
		for _, m := range d.Models {
			for i := range m.Good {
				ended += uint64(m.Good[i] + m.Bad[i])
			}
			for b, n := range m.Sizes {
				sized += uint64(b) * n
			}
		}
		return ended > 0 && sized > 0 && sized <= ended
	})
	if !d.Connected || !d.Scheduler || len(d.Models) != 1 || len(d.GPUs) != 1 || len(d.Models[0].Good) != pageSeconds {
		t.Fatalf("%s", text)
	}
	_, _, text = call(t, "GET", url+"/v2/models/car/stats", nil)
	if got := strings.ReplaceAll(string(text), " ", ""); !strings.Contains(got, `"batch_size":`) || strings.Contains(got, `"execution_count":0,`) {
		t.Errorf("statistics %s", got)
	}
	_, _, text = call(t, "GET", url+"/metrics", nil)
	for _, want := range []string{`downbeat_inference_batch_size_count{model="car",version="1"}`, "downbeat_backend_busy_ratio{gpu=", `downbeat_inference_queue_depth_bucket{model="car"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
	for path, kind := range map[string]string{"/": "text/html", "/page.js": "text/javascript", "/panels.js": "text/javascript", "/page.css": "text/css"} {
		code, h, text := call(t, "GET", url+path, nil)
		if code != 200 || !strings.HasPrefix(h.Get("Content-Type"), kind) || len(text) < 500 || !strings.Contains(h.Get("Content-Security-Policy"), "default-src 'self'") {
			t.Errorf("%s: %d %v", path, code, h)
		}
	}
}

// TestPageCountsOtherFrontends: if the scheduler runs in the process, the page counts requests from other frontends,
// each once, besides the gateway's own.
func TestPageCountsOtherFrontends(t *testing.T) {
	s, url := wholeGateway(t, map[string]string{"car": emulated("0.1", "1", "5000", "8")}, 1)
	look := func() (d page.Data, good, bad uint32) {
		_, _, text := call(t, "GET", url+"/v2/downbeat/page", nil)
		if err := json.Unmarshal(text, &d); err != nil {
			t.Fatal(err)
		}
		for _, m := range d.Models {
			for i := range m.Good {
				good, bad = good+m.Good[i], bad+m.Bad[i]
			}
		}
		return d, good, bad
	}
	until(t, func() bool { d, _, _ := look(); return len(d.Models) == 1 && d.Ready })

	other, err := frontend.Dial(t.Context(), frontend.Options{Scheduler: s.Addr, Grace: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	until(t, func() bool { m := other.Model("car", ""); return m != nil && m.Ready })
	b, err := other.Buffer(64)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Free()

	const each = 60
	own := uint32(0)
	for range each {
		result, err := other.Infer(t.Context(), "car", b)
		if err != nil {
			t.Fatal(err)
		}
		result.Release()
		code, _, _ := call(t, "POST", url+"/v2/models/car/infer", strings.NewReader(`{"inputs":[{"name":"image","shape":[1,16],"datatype":"FP32","data":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}]}`))
		if code == http.StatusOK {
			own++
		}
	}

	// These requests cannot meet their deadline: a batch of one takes 1.1 ms.
	dropped := uint32(0)
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		var o *frontend.OutcomeError
		if _, err := other.Infer(ctx, "car", b); errors.As(err, &o) && !o.Local {
			dropped++
		}
		cancel()
	}

	var d page.Data
	var good, bad uint32
	until(t, func() bool { d, good, bad = look(); return good >= each+own && bad >= each-own+dropped })
	if !d.Elsewhere || own == 0 || good != each+own || bad > each-own+10 {
		t.Errorf("%d good and %d bad, want %d good of others and %d of the gateway, and %d to 10 bad", good, bad, each, own, dropped)
	}
	if _, again, _ := look(); again != good {
		t.Errorf("%d good, and a moment later %d", good, again)
	}
}

// TestPageInBrowser draws the page in headless Chromium and checks the result. With PAGE_PNG=file it saves the
// picture, after a longer load.
func TestPageInBrowser(t *testing.T) {
	chromium := findChromium(t)
	keep, d, theme := os.Getenv("PAGE_PNG"), time.Second, os.Getenv("PAGE_THEME")
	if keep != "" {
		d = 45 * time.Second
	}
	_, url := wholeGateway(t, map[string]string{"detector-m": emulated("2.2", "6", "60", "16"), "vehicle-s": emulated("0.6", "2", "40", "32"), "person-l": emulated("3", "8", "80", "16")}, 4)
	var wait sync.WaitGroup
	wait.Go(func() { load(t, url, "detector-m", 150, d) })
	wait.Go(func() { load(t, url, "vehicle-s", 300, d) })
	wait.Go(func() { load(t, url, "person-l", 100, d) })
	time.Sleep(d * 9 / 10)
	shot := filepath.Join(t.TempDir(), "page.png")
	dom := browse(t, chromium, url+"/?theme="+theme, "--dump-dom")
	for _, want := range []string{`data-drawn="yes"`, "detector-m", "serving", "mean "} {
		if !strings.Contains(dom, want) {
			t.Errorf("the drawn page lacks %q:\n%.3000s", want, dom)
		}
	}
	browse(t, chromium, url+"/?theme="+theme, "--window-size=1240,740", "--screenshot="+shot)
	wait.Wait()
	f, err := os.Open(shot)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	picture, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	colors := map[[3]uint32]bool{}
	for y := 0; y < picture.Bounds().Dy(); y += 3 {
		for x := 0; x < picture.Bounds().Dx(); x += 3 {
			r, g, b, _ := picture.At(x, y).RGBA()
			colors[[3]uint32{r >> 12, g >> 12, b >> 12}] = true
		}
	}
	if len(colors) < 20 {
		t.Errorf("the picture has %d colors: it is not drawn", len(colors))
	}
	if keep != "" {
		text, err := os.ReadFile(shot)
		if err == nil {
			err = os.WriteFile(keep, text, 0o644)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// findChromium returns the browser, and skips the test if there is none.
func findChromium(t *testing.T) string {
	t.Helper()
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed: the page is not drawn")
	}
	return chromium
}

// browse runs Chromium once and returns its output. A browser that hangs, as happens on a busy host, is started
// again.
func browse(t *testing.T, chromium, url string, flags ...string) string {
	t.Helper()
	for tries := 3; ; tries-- {
		out, err := browseOnce(t, chromium, url, flags...)
		if err == nil {
			return string(out)
		}
		if tries == 1 {
			t.Fatalf("chromium: %v", err)
		}
		t.Logf("chromium: %v", err)
	}
}

func browseOnce(t *testing.T, chromium, url string, flags ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	args := append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--hide-scrollbars", "--virtual-time-budget=2500", "--user-data-dir=" + t.TempDir()}, flags...)
	c := exec.CommandContext(ctx, chromium, append(args, url)...)
	c.WaitDelay = 5 * time.Second // its children hold its output open
	return c.Output()
}
