// Package learn trains one model further while it serves: it keeps labelled samples of what is asked, notices drift,
// runs training steps one at a time, and publishes weights that have been shown to be better (AdaInf §3.2 and §3.3;
// docs/decisions/0152).
//
// It starts no goroutine, sets no timer and chooses no moment: whoever has time on a processor or GPU that nobody can
// miss calls Step, and is told how long it took. It reads no request and sends no answer.
//
// Words: a sample is an input with its class; a fresh one has not been trained on yet; the candidate is what steps train;
// the serving weights are those published last; known versions served when a drift came.
//
// Invariants:
//
//	L1  Weights are published only when they answer fresh samples of the present better than the serving ones, by more
//	    than one and a half standard errors, and have not forgotten what the first weights could. What they replace goes
//	    on being judged, and comes back if it is better by as much.
//	L2  Weights that are not finite, or a loss that is not, are never published: the candidate begins again.
//	L3  A sample judges only weights that were not trained on it; samples that detect drift are never trained on.
//	L4  The same options, samples and calls publish the same versions.
//	L5  A version is in the repository whole or not at all.
//
// A Learner belongs to one goroutine.
package learn
