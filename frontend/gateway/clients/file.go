package clients

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"gopkg.in/yaml.v3"
)

// Limits of a file of clients.
const (
	fileSizeMax  = 1 << 20
	clientsMax   = 1024 // each name is a label in the metrics
	modelsMax    = 4096 // of one client
	nameMax      = 64
	tokenMin     = 16
	tokenMax     = 256
	rateMin      = 0.001
	rateMax      = 1e9
	inFlightsMax = 1 << 30
)

// entry is one client as a file describes it.
type entry struct {
	name, token string
	limits      limits
}

// limits are the limits of one client.
type limits struct {
	models   map[string]bool // nil: all
	rate     float64         // requests a second; 0: unlimited
	inFlight int64           // requests at a time; 0: unlimited
}

// allowsModel reports whether the client may use a model.
func (l *limits) allowsModel(model string) bool { return l.models == nil || l.models[model] }

// readFile reads a file of clients of at most 1 MiB.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()

	text, err := io.ReadAll(io.LimitReader(f, fileSizeMax+1))
	if err == nil && len(text) > fileSizeMax {
		err = fmt.Errorf("%s: larger than %d bytes", path, fileSizeMax)
	}
	return text, err
}

// parseClients parses the text of a file of clients. An error names the line, the field and what is allowed, never a
// token. clusterToken, unless empty, must not be a client's.
func parseClients(text []byte, clusterToken string) ([]entry, error) {
	var document yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(&document); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(document.Content) != 1 {
		return nil, errors.New("line 1: the file is empty: want clients: and a list below it")
	}

	// Clients after a "---" would silently be ignored.
	var second yaml.Node
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, fieldError(&second, "the file", "has a second document: want one")
	}

	list, err := mappingFields(document.Content[0], "the file", "clients")
	if err != nil {
		return nil, err
	}
	nodes, err := listOf(list["clients"], document.Content[0], "clients", clientsMax)
	if err != nil {
		return nil, err
	}

	// Names are labels and tokens identify clients, so both must be unique.
	entries := make([]entry, 0, len(nodes))
	names, tokens := map[string]bool{}, map[string]bool{}
	for i, node := range nodes {
		at := "clients[" + strconv.Itoa(i) + "]"
		e, err := parseEntry(node, at)
		switch {
		case err != nil:
			return nil, err
		case names[e.name]:
			return nil, fieldError(node, at+".name", strconv.Quote(e.name)+" is another client's, too: want a name of its own")
		case tokens[e.token]:
			return nil, fieldError(node, at+".token", "it is another client's, too: want a token of its own")
		case e.token == clusterToken:
			return nil, fieldError(node, at+".token", "it is the cluster's (token_file): want a token of its own")
		}

		names[e.name], tokens[e.token] = true, true
		entries = append(entries, e)
	}
	return entries, nil
}

// parseEntry parses one client; at is its position.
func parseEntry(node *yaml.Node, at string) (e entry, err error) {
	of, err := mappingFields(node, at, "name", "token", "models", "rate", "in_flight")
	if err != nil {
		return e, err
	}

	if e.name, err = textOf(of["name"], node, at+".name", 1, nameMax); err != nil {
		return e, err
	}
	if e.token, err = textOf(of["token"], node, at+".token", tokenMin, tokenMax); err != nil {
		return e, err
	}

	// Without the field all models are allowed; an empty list would be read as either all or none.
	if models := of["models"]; models != nil {
		names, err := listOf(models, node, at+".models", modelsMax)
		if err != nil {
			return e, err
		}
		e.limits.models = make(map[string]bool, len(names))
		for i, name := range names {
			model, err := textOf(name, node, at+".models["+strconv.Itoa(i)+"]", 1, fileSizeMax)
			if err != nil {
				return e, err
			}
			e.limits.models[model] = true
		}
	}

	if rate := of["rate"]; rate != nil {
		n, err := strconv.ParseFloat(rate.Value, 64)
		if err != nil || rate.Kind != yaml.ScalarNode || !(n >= rateMin && n <= rateMax) {
			return e, fieldError(rate, at+".rate", fmt.Sprintf("%.20q: want requests per second, %v to %.0f, or no such field", rate.Value, rateMin, rateMax))
		}
		e.limits.rate = n
	}
	if inFlight := of["in_flight"]; inFlight != nil {
		n, err := strconv.ParseInt(inFlight.Value, 10, 64)
		if err != nil || inFlight.Kind != yaml.ScalarNode || n < 1 || n > inFlightsMax {
			return e, fieldError(inFlight, at+".in_flight", fmt.Sprintf("%.20q: want requests at a time, 1 to %d, or no such field", inFlight.Value, inFlightsMax))
		}
		e.limits.inFlight = n
	}
	return e, nil
}

// fieldError returns an error about a field.
func fieldError(node *yaml.Node, field, why string) error {
	return fmt.Errorf("line %d: %s: %s", max(node.Line, 1), field, why)
}

// mappingFields returns the values of a mapping by key; all keys must be in allowed.
func mappingFields(node *yaml.Node, at string, allowed ...string) (map[string]*yaml.Node, error) {
	if node.Kind != yaml.MappingNode {
		return nil, fieldError(node, at, fmt.Sprintf("want a mapping with the fields %v", allowed))
	}

	found := map[string]*yaml.Node{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		known := false
		for _, name := range allowed {
			known = known || key.Kind == yaml.ScalarNode && key.Value == name
		}
		if !known {
			return nil, fieldError(key, at, fmt.Sprintf("%.40q: no such field; the fields are %v", key.Value, allowed))
		}
		if found[key.Value] != nil {
			return nil, fieldError(key, at+"."+key.Value, "stands there twice")
		}
		found[key.Value] = value
	}
	return found, nil
}

// listOf returns the elements of a list of 1 to most nodes. parent gives the position of a missing list.
func listOf(node, parent *yaml.Node, field string, most int) ([]*yaml.Node, error) {
	switch {
	case node == nil:
		return nil, fieldError(parent, field, "missing: want a list")
	case node.Kind != yaml.SequenceNode:
		return nil, fieldError(node, field, "want a list")
	case len(node.Content) < 1 || len(node.Content) > most:
		return nil, fieldError(node, field, fmt.Sprintf("%d entries: want 1 to %d", len(node.Content), most))
	}
	return node.Content, nil
}

// textOf returns the value of a field of least to most printable bytes. Errors do not repeat the value, because it
// may be a secret.
func textOf(node, parent *yaml.Node, field string, least, most int) (string, error) {
	if node == nil {
		return "", fieldError(parent, field, "missing")
	}
	if node.Kind != yaml.ScalarNode || len(node.Value) < least || len(node.Value) > most {
		return "", fieldError(node, field, fmt.Sprintf("%d bytes: want a text of %d to %d", len(node.Value), least, most))
	}

	// A header carries the token and a label the name: neither may contain the end of a line.
	for _, c := range []byte(node.Value) {
		if c <= ' ' || c > '~' {
			return "", fieldError(node, field, "want printable ASCII characters without spaces")
		}
	}
	return node.Value, nil
}
