// Package learn trains one model further while it serves. It keeps labelled samples of the served inputs, detects drift,
// runs training steps one at a time, and publishes weights that have been shown to be better (AdaInf §3.2 and §3.3;
// docs/decisions/0152).
//
// It starts no goroutine, sets no timer and chooses no time: the owner of an idle processor or GPU calls Step, which
// reports how long it took. The package reads no request and sends no answer.
//
// Words: a sample is an input with its class; a fresh sample has not been trained on yet; the candidate is the set of
// weights being trained; the serving weights are the latest published ones; known versions served when a drift came.
//
// Invariants:
//
//	L1  Weights are published only if they answer fresh samples of the present better than the serving ones, by the
//	    margins of gate.go, and have not forgotten more of the first data than forget.go allows. The replaced version
//	    is still judged until it is worse by two standard errors, and serves again if it is better by two.
//	L2  Weights or a loss that are not finite are never published: the candidate restarts from the serving weights.
//	L3  A sample judges only weights that were not trained on it, and none is trained on while it detects drift.
//	L4  The same options, samples and calls publish the same versions.
//	L5  A version is in the repository completely or not at all.
//
// A Learner is not safe for concurrent use.
package learn
