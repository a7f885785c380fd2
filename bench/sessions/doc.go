// Package sessions compares ways to serve sessions of applications in virtual time: streams of frames through DAGs of
// modules, each frame within a latency (Rim, EVIDENCE §3). Downbeat dispatches every stage centrally, frames of all
// sessions in one queue per module; Rim places each session on workers and batches nothing.
//
// Rim's profiles are not published. Applications gives stated ones: GPU times are chosen so that a worker alone sustains
// the frame rates that Rim's text and its maximal workloads imply; all else is an assumption, named where it stands.
package sessions
