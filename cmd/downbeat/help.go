package main

import (
	"fmt"
	"io"
	"slices"
)

// examples are sample command lines by command. A test parses each.
var examples = map[string][]string{
	"downbeat demo": {
		"downbeat demo -duration 60s -rate 500",
		"downbeat demo drift                       night falls on a rendered street, and a model learns night scenes while it serves",
		"downbeat demo -emulate 4 -models DIR      on emulated GPUs, with models whose config.pbtxt states their latency",
	},
	"downbeat demo drift": {"downbeat demo drift -duration 30s -rate 200"},
	"downbeat serve": {
		"downbeat serve                            everything on loopback: REST 8000, gRPC 8001, scheduler 7070",
		"downbeat serve -config downbeat.yaml -log-level debug",
		"downbeat serve -print-config              print the configuration in force, as a file for -config",
	},
	"downbeat scheduler": {
		"downbeat scheduler",
		"downbeat scheduler -config /etc/downbeat/downbeat.yaml -metrics 0.0.0.0:8002",
	},
	"downbeat backend": {
		"downbeat backend -name a -executors 2",
		"downbeat backend -cores 2,3               an executor on each of these cores",
		"downbeat backend -gpu -scheduler scheduler.example:7070 -config /etc/downbeat/downbeat.yaml",
		"downbeat backend -gpu -lanes 2            two lanes on each GPU; see: downbeat profile -h",
	},
	"downbeat gateway": {
		"downbeat gateway",
		"downbeat gateway -scheduler scheduler.example:7070 -config /etc/downbeat/downbeat.yaml",
	},
	"downbeat infer": {
		"downbeat infer detector-m models/testdata/street-1.png",
		"downbeat infer -timeout 30ms vehicle models/testdata/vehicle-3-truck.png   name a family: the best variant answers",
	},
	"downbeat rollback": {
		"downbeat rollback vehicle-s 3",
	},
	"downbeat explain": {
		"downbeat explain",
		"downbeat explain -url http://scheduler.example:8002 -token-file /etc/downbeat/token -o json",
	},
	"downbeat sessions": {"downbeat sessions", "downbeat sessions -frames 5"},
	"downbeat load": {
		"downbeat load -rate 100 -duration 30s",
		"downbeat load -trace arrivals.csv -report load.html",
		"downbeat load -model vehicle-s,detector-m -arrivals gamma:0.5 -popularity zipf:0.9 -slo 50ms",
	},
	"downbeat net": {
		"downbeat net -ports 7070,7071 -for 30s",
	},
	"downbeat chaos": {
		"downbeat chaos -short                     the worst cases in one minute, as make chaos runs them",
		"downbeat chaos -only frontend-dark -repeats 3 -seed 7 -o json",
		"downbeat chaos -only soak-1h",
	},
	"downbeat check": {
		"downbeat check",
		"downbeat check -models models -rate 48 -draw out   check applications: budgets, costs and pictures",
	},
	"downbeat profile": {
		"downbeat profile -dry-run vehicle-s",
		"downbeat profile -gpu -rounds 200",
		"downbeat profile -threads 2 -lanes 1,2    two threads as one executor, and as two lanes: which serves more",
	},
	"downbeat models train":   {"downbeat models train -only vehicle-s -dir out/models"},
	"downbeat models check":   {"downbeat models check -images 500"},
	"downbeat models readme":  {"downbeat models readme -dir out/models"},
	"downbeat models render":  {"downbeat models render -n 4 -conditions night"},
	"downbeat bench sessions": {"downbeat bench sessions -workload f9 -policy all", "downbeat bench sessions -workload W-1,W-2,W-3 -workers 10 -policy downbeat,rim -o json"},
	"downbeat bench joint":    {"downbeat bench joint -o json -out out/joint", "downbeat bench joint -learn=false -span 10s -load 0.5,1,1.5"},
	"downbeat bench spare":    {"downbeat bench spare -load 0.5,0.9 -step 2ms,10ms", "downbeat bench spare -setting fig6-1080ti-all -o json"},
	"downbeat bench accuracy": {"downbeat bench accuracy -trace bursty", "downbeat bench accuracy -trace figure4 -policy downbeat,proteus -slo-scale 3 -o json"},
	"downbeat bench goodput":  {"downbeat bench goodput -setting table4", "downbeat bench goodput -setting fig6-a100-all -policy all -o json"},
	"downbeat bench figure":   {"downbeat bench figure symphony t2", "downbeat bench figure proteus f5 -out out/f5"},
	"downbeat bench figures":  {"downbeat bench figures -only t1,t2,s1"},
	"downbeat bench drift": {
		"downbeat bench drift -policy none,ours -gpus 1 -periods 4",
		"downbeat bench drift -o periods -schedule paper",
	},
	"downbeat bench plan":     {"downbeat bench plan -sizes 60x3 -limit 1s -solver local,random"},
	"downbeat bench failover": {"downbeat bench failover -kills 5"},
	"downbeat bench scale":    {"downbeat bench scale -gpus 64 -span 10m -o json"},
	"downbeat plan size": {
		"downbeat plan size -rate ResNet50=3000,BERT=200 -slo 50ms -svg size.svg",
		"downbeat plan size -kind a100 -rate classify=20000 -slo 60ms -family classify=ResNet152:0.783+ResNet50:0.761+MobileNetV2:0.718 -accuracy 0.77",
	},
	"downbeat bench reconfigure": {"downbeat bench reconfigure -o json", "downbeat bench reconfigure -scenario share -load 0.9"},
	"downbeat bench prepare":     {"downbeat bench prepare -o csv", "downbeat bench prepare -spread 0.5 -hooks 5ms -forms after,hint"},
	"downbeat plan show":         {"downbeat plan show"},
	"downbeat plan dry-run": {
		"downbeat plan dry-run -parts 4",
		"downbeat plan dry-run -moves 0.2 -o json",
	},
	"downbeat plan apply": {
		"downbeat plan apply -f plan.json -wait",
		"downbeat plan apply -url http://scheduler.example:8002 -token-file /etc/downbeat/token",
	},
	"downbeat plan rollback": {"downbeat plan rollback -wait"},
	"downbeat canary start": {
		"downbeat canary start -model detector-m -version 2 -share 0.05 -shadow 0.2 -tolerance 0.001",
		"downbeat canary start -model detector-m -base 1 -version 2 -url http://gateway-0:8000,http://gateway-1:8000",
	},
	"downbeat canary show":     {"downbeat canary show"},
	"downbeat canary promote":  {"downbeat canary promote -model detector-m"},
	"downbeat canary rollback": {"downbeat canary rollback -model detector-m"},
	"downbeat canary end":      {"downbeat canary end -model detector-m"},
	"downbeat bench schedule":  {"downbeat bench schedule -arrivals a.csv -profiles p.csv -gpus 8 -batches b.csv -outcomes o.csv"},
	"downbeat bench dispatch":  {"downbeat bench dispatch -models 1000 -cores 2", "downbeat bench dispatch -growth out"},
	"downbeat bench transfer":  {"downbeat bench transfer -provider tcp -op read -o json"},
	"downbeat bench overhead":  {"downbeat bench overhead -provider shm"},
	"downbeat bench gateway":   {"downbeat bench gateway -callers 64"},
	"downbeat bench gpu":       {"downbeat bench gpu -graphs resnet50 -precisions fp16", "downbeat bench gpu -check"},
}

const driftSummary = "let night fall on a rendered street, and let a model learn the night scenes while it serves"

// wantsHelp reports whether a command line asks for help.
func wantsHelp(args []string) bool {
	// Words after -- are operands, not flags.
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	return slices.ContainsFunc(args, func(a string) bool {
		return a == "-h" || a == "--h" || a == "-help" || a == "--help"
	})
}

// introduceCommand prints a command's summary and examples, before its flags. A command with subcommands explains
// those itself.
func introduceCommand(w io.Writer, path string, c command, args []string) {
	full := path + " " + c.name
	switch {
	case full == "downbeat demo" && len(args) > 0 && args[0] == "drift":
		full, c.summary = "downbeat demo drift", driftSummary
	case full == "downbeat models", full == "downbeat bench", full == "downbeat plan", full == "downbeat canary":
		return
	}

	fmt.Fprintf(w, "%s: %s\n\n", full, c.summary)
	for _, line := range examples[full] {
		fmt.Fprintf(w, "  %s\n", line)
	}
	if len(examples[full]) > 0 {
		fmt.Fprintln(w)
	}
}
