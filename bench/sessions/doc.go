// Package sessions compares, in virtual time, ways to serve sessions of applications: streams of frames through DAGs
// of modules, each frame within a latency (Rim, EVIDENCE §3). Downbeat dispatches every stage centrally, with frames
// of all sessions in one queue per module; Rim places each session on workers and does not batch.
//
// Rim's profiles are not published. Applications has stated ones: GPU times are chosen so that one worker sustains
// the frame rates that Rim's text and its maximal workloads imply. Everything else is an assumption, marked in its
// place.
package sessions
