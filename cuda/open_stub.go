//go:build !(cuda && linux && cgo)

package cuda

func openDriver(int) (driver, error) {
	return nil, &Error{Op: "open device (built without tag cuda)", Code: CodeNotSupported}
}

func listGPUs() ([]GPU, error) {
	return nil, &Error{Op: "inventory (built without tag cuda)", Code: CodeNotSupported}
}

func deviceCount() (int, error) {
	return 0, &Error{Op: "count devices (built without tag cuda)", Code: CodeNotSupported}
}

const supported = false
