package drift

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"downbeat.dev/bench/figure"
)

// Figure is a figure or table of the AdaInf paper.
type Figure struct {
	ID, Title string
	Draw      func(context.Context, *Inputs) (*figure.Drawing, error)
	// OnGPU is the command that measures the figure on a GPU, if it is drawn from stated rates; "": none.
	OnGPU string
	// Where says where the figure runs; "": virtual time, with real training.
	Where string
}

// Inputs are the inputs of the figures.
type Inputs struct {
	Setting Setting
	Periods []PeriodRow // output of `bench drift -o periods`
}

// Figures are the paper's figures that compare systems or models, in its order.
var Figures []Figure

func init() {
	const rated = "virtual time, stated rates"
	const gpu = "downbeat bench gpu -graphs resnet50 -batches 1,2,4,8,16,32,64"
	Figures = []Figure{
		// §2: observations.
		{ID: "f4", Title: "accuracy by period with and without retraining, and who sees new weights", Draw: drawRetraining},
		{ID: "f5", Title: "accuracy that a model without retraining loses", Draw: drawLosses},
		{ID: "f6", Title: "divergence of labels from one period to the next", Draw: drawDivergence},
		{ID: "f7", Title: "all structures of the application: accuracy over cost", Draw: drawStructures},
		{ID: "f8", Draw: drawBatchSizes, Where: rated, Title: "latency over the batch size", OnGPU: gpu},
		{ID: "f9", Draw: drawSpaces, Where: rated, Title: "the same with a share of the GPU", OnGPU: "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25 " + gpu},
		{ID: "f10", Draw: drawExitBatches, Where: rated, Title: "the same of early exits", OnGPU: "downbeat profile -models models vehicle-l vehicle-l-exit1 vehicle-l-exit2"},
		{ID: "f11", Draw: drawCopies, Where: rated, Title: "copies and computing in a batch", OnGPU: gpu + " -layers"},
		{ID: "f12", Title: "reuse times by type of data", Draw: drawReuse, Where: rated},
		{ID: "f13", Title: "reuse times of parameters by the next job", Draw: drawNextJob, Where: rated},

		// §5: results.
		{ID: "f18", Title: "accuracy over time and GPUs", Draw: drawAccuracy},
		{ID: "f19", Title: "finish rate over time and GPUs", Draw: drawFinish},
		{ID: "f20", Title: "GPU time of retraining and of inference for a request", Draw: drawTimes},
		{ID: "f21", Title: "GPUs' use over time", Draw: drawUse},
		{ID: "f22", Title: "variants of the method", Draw: drawVariants},
		{ID: "f23", Title: "the weight α of an SLO in the eviction score", Draw: drawWeights, Where: rated},
		{ID: "f24", Title: "the threshold A_m of the vehicle model", Draw: drawThreshold},
		{ID: "t1", Title: "what deciding takes", Draw: drawOverheads},
		{ID: "t2", Title: "which models are found to have drifted, by S", Draw: drawDivergent},
	}
}

// FindFigure returns the figure with an ID.
func FindFigure(id string) (Figure, error) {
	return figure.Find(Figures, func(f Figure) string { return f.ID }, id)
}

// Write makes a figure and writes it to a directory.
func (f Figure) Write(ctx context.Context, in *Inputs, dir string) error {
	d, err := f.Draw(ctx, in)
	if err != nil {
		return fmt.Errorf("figure %s: %w", f.ID, err)
	}
	return d.Write(dir, f.ID)
}

// ReadPeriods reads the output of `bench drift -o periods`.
func ReadPeriods(path string) (rows []PeriodRow, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()

	for d := json.NewDecoder(f); ; {
		var row PeriodRow
		switch err := d.Decode(&row); {
		case errors.Is(err, io.EOF):
			return rows, nil
		case err != nil:
			return nil, fmt.Errorf("%s: line %d: %w", path, len(rows)+1, err)
		}
		rows = append(rows, row)
	}
}
