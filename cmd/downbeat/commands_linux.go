package main

// commands returns every command of downbeat, in the order of the help text.
func commands() []command {
	// A newcomer's first commands come first.
	return []command{
		demoCommand(),
		serveCommand(),
		schedulerCommand(),
		backendCommand(),
		gatewayCommand(),
		inferCommand(),
		rollbackCommand(),
		explainCommand(),
		sessionsCommand(),
		loadCommand(),
		checkCommand(),
		netCommand(),
		chaosCommand(),
		profileCommand(),
		modelsCommand(),
		planCommand(),
		canaryCommand(),
		benchCommand(),
		versionCommand(),
	}
}

// benches returns the benchmarks, each a command under "downbeat bench".
func benches() []command {
	return []command{
		// In virtual time.
		benchGoodput(),
		benchSchedule(),
		benchPlan(),
		benchAccuracy(),
		benchFigure(),
		benchFigures(),
		benchScale(),
		benchReconfigure(),
		benchPrepare(),
		benchSessions(),
		benchSpare(),
		benchDrift(),
		benchJoint(),

		// On this host.
		benchDispatch(),
		benchTransfer(),
		benchOverhead(),
		benchGateway(),
		benchFailover(),
		benchGPU(),
	}
}

const footer = `
Start here:
  downbeat demo                                            serve the models in models/, send load and print the results
  downbeat serve                                           run scheduler, backend and gateway in one process
  downbeat infer detector-m models/testdata/street-1.png   in a second terminal: ask it about a picture
`
