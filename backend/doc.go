// Package backend serves batches: it fetches their inputs from the frontends' memory, runs them on a GPU at the time
// that the scheduler chose, and sends the outputs directly back.
//
// It does not schedule. It never reorders the batches of a GPU, and never splits or joins them; it refuses only
// batches whose requests have all ended or can no longer meet their deadlines.
//
// The life of a batch (called an order here), and its owners:
//
//  1. The link's goroutine copies the Execute into an order of its GPU, takes a slot and posts one
//     chain of reads per frontend; row i of the batch lands at row i of the slot (events.Execute,
//     gpu.acceptBatch, order.fetchInputs). While no slot is free the order waits in line.
//  2. The data plane owns the rows' bytes until each chain's done; the last one wakes the GPU.
//  3. The GPU's goroutines take orders as they came, one at a time. One waits for the inputs, moves rows
//     together if some could not be fetched, and runs the executor. Fetching the next orders continues
//     meanwhile, and executors that take rows early copy each long one to the GPU as it lands
//     (group.noteLanded, group.forwardRows). Executors that take batches ahead get the next one while one runs,
//     if all its reads have ended and its deadlines allow the running batch its time; otherwise it is decided
//     when the GPU is free (gpu.awaitTurn).
//  4. Outputs leave from the slot, sent by the goroutine that waited for the batch. If only one goroutine runs
//     batches and more is due, a second one sends them (gpu.replyAll). Then Done goes to the scheduler.
//  5. When both the reads and the replies have ended, slot and order are reused.
//
// Invariants:
//
//	B1  Every request of an accepted order ends once: by its output, or by a reason sent to its
//	    frontend and, as a failure, reported in Done. Orders that had not reached the executor when the
//	    link was lost are forgotten. Requests on a GPU that is lost or hangs are returned in Done
//	    (BackendLost those of the executor, NoBackend the others): the scheduler gives them to others.
//	B2  A row that cannot be fetched fails alone.
//	B3  A slot is reused only after the last read into it and the last send from it.
//	B4  No wait is unbounded: fetches end by the batch's deadlines, and a hanging GPU returns its
//	    orders, and those that arrive, until it answers again.
//	B5  Fetch, execute and reply allocate nothing after warm-up.
//	B6  The executor has at most two batches, in the scheduler's order. One that fails does not affect the
//	    other, unless the GPU is lost.
//
// Concurrency: a Backend's exported methods may be called from any goroutine; the events of the link come from one.
package backend
