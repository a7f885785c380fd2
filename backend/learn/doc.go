// Package learn trains one model further while it serves: it keeps labelled samples of what is asked, notices drift,
// runs training steps one at a time, and publishes weights that have been shown to be better (AdaInf §3.2 and §3.3;
// docs/decisions/0152).
//
// It starts no goroutine, sets no timer and chooses no moment: whoever has time on a processor or GPU that nobody can
// miss calls Step, and is told how long it took. It reads no request and sends no answer.
//
// Words: a sample is an input with its class; held-out samples judge weights and are never trained on; the candidate is
// what steps train; the serving weights are those published last.
//
// Invariants:
//
//	L1  Weights are published only when they answer held-out samples of the present better than the serving ones, by
//	    more than two standard errors, and have not forgotten what the first weights could.
//	L2  Weights that are not finite, or a loss that is not, are never published: the candidate begins again.
//	L3  Samples that detect drift, samples that judge weights and samples that are trained on are three sets.
//	L4  The same options, samples and calls publish the same versions.
//	L5  A version is in the repository whole or not at all.
//
// A Learner belongs to one goroutine.
package learn
