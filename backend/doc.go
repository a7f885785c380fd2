// Package backend serves batches: it fetches their inputs from the frontends' memory, runs them on a
// GPU by the moment that the scheduler chose, and sends the outputs straight back.
//
// It does not schedule. It never reorders the batches of a GPU, and never splits or joins them; what
// it refuses is what nobody can use any more.
//
// The life of a batch (an order, here), and who owns it:
//
//  1. The link's goroutine copies the Execute into an order of its GPU, takes a slot and posts one
//     chain of reads per frontend; row i of the batch lands at row i of the slot (Backend.Execute,
//     gpu.accept, order.fetch). While no slot is free the order waits in line.
//  2. The data plane owns the rows' bytes until each chain's done; the last one wakes the GPU.
//  3. The GPU's goroutines take orders as they came, one at a time. One waits for the inputs, moves rows together if
//     some could not be fetched, and runs the executor. Fetching the next orders goes on meanwhile, and
//     executors that take rows early copy each long one to the GPU as it lands (group.landed, group.forward).
//     Executors that take batches ahead get the next one while one runs, if all its reads have ended and
//     its deadlines allow that one its time; else it is decided about when the GPU is free (gpu.turn).
//  4. Outputs leave from the slot, by the goroutine that waited for the batch; where there is but one that runs
//     batches and more is due, by a second (gpu.reply). Then Done goes to the scheduler.
//  5. When both the reads and the replies are through, slot and order are used again.
//
// Invariants:
//
//	B1  Every request of an accepted order ends once: by its output or by a reason, sent to its
//	    frontend and, as a failure, told in Done. Only what the executor had not got when the link was lost
//	    is forgotten, and what a GPU held that is lost or hangs is given back in Done
//	    (BackendLost what the executor had, NoBackend the rest):
//	    the scheduler gives it to others.
//	B2  A row that cannot be fetched fails alone.
//	B3  A slot is used again only after the last read into it and the last send from it.
//	B4  Nobody waits for ever: fetches end by the batch's deadlines, and a GPU that hangs gives
//	    back what it holds and what comes, until it answers again.
//	B5  Fetch, execute and reply allocate nothing after warm-up.
//	B6  The executor has at most two batches, in the scheduler's order. One that fails takes no other with it,
//	    unless the GPU is lost.
//
// Concurrency: a Backend's exported methods may be called from any goroutine; the events of the
// link come from one.
package backend
