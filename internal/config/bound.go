package config

import (
	"bytes"

	"go.yaml.in/yaml/v3"
)

// mostValues is how many values a configuration may have. Every alias counts with all its values, because reading costs that
// much. A file of a megabyte can stand for more than any machine holds. A service takes about ten values.
const mostValues = 100_000

// longText is how many bytes of a text count as one more value.
const longText = 16

// crowded returns the line with which a text gets more values than mostValues, 0 for none. It counts what separates values, so it
// comes before the parser, which takes about 200 bytes for each of them.
func crowded(data []byte) (line int) {
	line = 1
	for n, c := 0, data; len(c) > 0; {
		i := bytes.IndexAny(c, ",:\n[{")
		if i < 0 {
			return 0
		}
		if n++; n > 4*mostValues { // a value has up to four of them
			return line
		}
		if c[i] == '\n' {
			line++
		}
		c = c[i+1:]
	}
	return 0
}

// weight counts values with aliases expanded. A count beyond mostValues is not exact, and heaviest is then the line of the alias that
// stands for most.
type weight struct {
	known    map[*yaml.Node]int
	most     int
	heaviest int
}

func (w *weight) of(n *yaml.Node) int {
	if total, known := w.known[n]; known {
		return total
	}
	w.known[n] = mostValues + 1 // of an alias to something that contains it
	total := 1 + len(n.Value)/longText
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		total = w.of(n.Alias)
		if total > w.most {
			w.most, w.heaviest = total, n.Line
		}
	}
	for _, child := range n.Content {
		total = min(total+w.of(child), mostValues+1)
	}
	w.known[n] = total
	return total
}

// heavy returns the line at which a document stands for more values than mostValues, 0 for none.
func heavy(doc *yaml.Node) (line int) {
	w := weight{known: make(map[*yaml.Node]int)}
	if w.of(doc) <= mostValues {
		return 0
	}
	return max(w.heaviest, 1)
}
