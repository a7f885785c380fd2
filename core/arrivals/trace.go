package arrivals

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ReadTrace reads lines "arrival_us,model" in order of time. It skips empty lines and lines that start with #. It
// returns the plan and the models' names in order of appearance.
func ReadTrace(r io.Reader) (plan []Arrival, models []string, err error) {
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" || text[0] == '#' || n == 1 && text == "arrival_us,model" {
			continue
		}

		at, model, ok := strings.Cut(text, ",")
		us, err := strconv.ParseInt(at, 10, 64)
		switch {
		case !ok || err != nil || us < 0 || us > math.MaxInt64/1000 || model == "":
			return nil, nil, fmt.Errorf("line %d: %q: want arrival_us,model with a whole number of µs", n, text)
		case len(plan) > 0 && time.Duration(us)*time.Microsecond < plan[len(plan)-1].At:
			return nil, nil, fmt.Errorf("line %d: %d µs is before the line above: want the lines in order of time", n, us)
		case len(plan) == planMax:
			return nil, nil, fmt.Errorf("line %d: more than %d requests", n, planMax)
		}

		i := slices.Index(models, model)
		if i < 0 {
			if i = len(models); i == 10_000 {
				return nil, nil, fmt.Errorf("line %d: more than %d models", n, i)
			}
			models = append(models, model)
		}
		plan = append(plan, Arrival{At: time.Duration(us) * time.Microsecond, Model: int32(i)})
	}

	if err := lines.Err(); err != nil {
		return nil, nil, err
	}
	if len(plan) == 0 {
		return nil, nil, fmt.Errorf("no arrivals in it")
	}
	return plan, models, nil
}
