package redact

import (
	"bytes"
	"cmp"
	"slices"
	"sort"
	"strings"
	"sync"
)

// Masked replaces each secret in a line, see [Masker].
const Masked = "***"

// minSecretLength is the minimum length of a value that [NewSecrets] hides. Shorter values may occur in ordinary words.
const minSecretLength = 8

// Classes of bytes. Each bit of a byte's class says what the byte can begin or belong to. Most bytes have none of the last
// three bits, so that Hide can skip them quickly.
const (
	kindWord    = 1 << iota // the byte can be part of a word; no token begins right after it
	kindToken               // a token of a known shape can begin with this byte
	kindLiteral             // a value to hide can begin with this byte
	kindOther               // other text that Hide must examine can begin with this byte
)

// Secrets is an immutable set of values to hide, in addition to tokens of known shapes.
type Secrets struct {
	kinds   [256]byte
	values  []secret // values to hide, sorted by text; the first one is empty
	longest int      // length of the longest value
}

type secret struct {
	text        string
	prefixIndex int `reexec:"prefix"` // index of the longest other value that is a prefix of text
}

// noSecrets is the empty set, with which Hide hides only tokens of known shapes.
var noSecrets = sync.OnceValue(func() *Secrets { return NewSecrets(nil) })

// NewSecrets returns a set of values to hide. It ignores values of less than eight bytes, because they occur in ordinary words.
// It also ignores values of several lines, because Hide examines single lines.
func NewSecrets(values []string) *Secrets {
	s := &Secrets{values: []secret{{}}}
	for c := range s.kinds {
		if isWordByte(byte(c)) || c == '-' {
			s.kinds[c] |= kindWord
		}
	}
	for c, list := range tokenShapes() {
		if len(list) > 0 {
			s.kinds[c] |= kindToken
		}
	}
	for _, c := range `Bb-` {
		s.kinds[c] |= kindToken
	}
	for _, c := range ":\\\x1b\n" {
		s.kinds[c] |= kindOther
	}
	for _, v := range slices.Compact(slices.Sorted(slices.Values(values))) {
		if len(v) < minSecretLength || strings.Contains(v, "\n") {
			continue
		}
		s.kinds[v[0]] |= kindLiteral
		at := len(s.values) - 1
		for !strings.HasPrefix(v, s.values[at].text) {
			at = s.values[at].prefixIndex
		}
		s.values, s.longest = append(s.values, secret{v, at}), max(s.longest, len(v))
	}
	return s
}

// tokenShape describes a kind of token with a known prefix.
type tokenShape struct {
	prefix     string
	isBodyByte func(c byte) bool // reports whether a byte may follow the prefix
	minBody    int               // smallest number of bytes after the prefix
	maxBody    int               // largest number of bytes after the prefix; 0: no limit
	// minimum length of a run of letters and digits, with at least one of each, in the token; 0: no such condition
	minRun    int
	firstByte string      // the first byte after the prefix must be in this set; "" allows any byte
	rest      *tokenShape // shape of the rest of the token; nil: the token ends here
}

// tokenShapes has the known shapes of tokens by their first byte. They are tokens of model providers, chat services, code hosts
// and similar services. Each shape is so strict that ordinary words, paths and hashes do not match.
var tokenShapes = sync.OnceValue(func() *[256][]tokenShape {
	const digits = "0123456789"
	list := []tokenShape{
		{prefix: "sk-", isBodyByte: isKeyByte, minBody: 20, minRun: 16},
		{prefix: "sk_live_", isBodyByte: isAlphanumeric, minBody: 16},
		{prefix: "sk_test_", isBodyByte: isAlphanumeric, minBody: 16},            //
		{prefix: "rk_live_", isBodyByte: isAlphanumeric, minBody: 16},            //
		{prefix: "whsec_", isBodyByte: isAlphanumeric, minBody: 24, minRun: 24},  //
		{prefix: "github_pat_", isBodyByte: isWordByte, minBody: 22, minRun: 16}, //
		{prefix: "glpat-", isBodyByte: isKeyByte, minBody: 20, minRun: 8},
		{prefix: "AKIA", isBodyByte: isUpperOrDigit, minBody: 16, maxBody: 16},
		{prefix: "ASIA", isBodyByte: isUpperOrDigit, minBody: 16, maxBody: 16}, //
		{prefix: "AIza", isBodyByte: isKeyByte, minBody: 35, maxBody: 35},
		{prefix: "ya29.", isBodyByte: isKeyByte, minBody: 30, minRun: 12}, //
		{prefix: "hf_", isBodyByte: isAlphanumeric, minBody: 30},
		{prefix: "gsk_", isBodyByte: isAlphanumeric, minBody: 40},
		{prefix: "xai-", isBodyByte: isAlphanumeric, minBody: 40},
		{prefix: "r8_", isBodyByte: isAlphanumeric, minBody: 30},
		{prefix: "npm_", isBodyByte: isAlphanumeric, minBody: 36}, //
		{prefix: "pypi-AgE", isBodyByte: isKeyByte, minBody: 40},  //
		{prefix: "dop_v1_", isBodyByte: isAlphanumeric, minBody: 40},
		{prefix: "xapp-", isBodyByte: isKeyByte, minBody: 20, firstByte: digits},
		{prefix: "SG.", isBodyByte: isKeyByte, minBody: 22, maxBody: 22, rest: &tokenShape{prefix: ".", isBodyByte: isKeyByte, minBody: 43, maxBody: 43}},
		// A JSON web token (RFC 7519) has three parts. The first two are JSON objects, encoded in base64url.
		{prefix: "eyJ", isBodyByte: isKeyByte, minBody: 7, rest: &tokenShape{
			prefix: ".eyJ", isBodyByte: isKeyByte, minBody: 7, rest: &tokenShape{prefix: ".", isBodyByte: isKeyByte, minBody: 10},
		}},
	}
	for _, kind := range "abeoprs" {
		list = append(list, tokenShape{prefix: "xox" + string(kind) + "-", isBodyByte: isKeyByte, minBody: 12, firstByte: digits})
	}
	for _, kind := range "pousr" {
		list = append(list, tokenShape{prefix: "gh" + string(kind) + "_", isBodyByte: isAlphanumeric, minBody: 30})
	}
	var byFirst [256][]tokenShape
	for _, p := range list {
		byFirst[p.prefix[0]] = append(byFirst[p.prefix[0]], p)
	}
	return &byFirst
})

// match returns the length of a token of this shape at the beginning of s, or 0.
func (p *tokenShape) match(s []byte) int {
	if !hasPrefix(s, p.prefix) {
		return 0
	}
	body := s[len(p.prefix):]
	n := classLength(body, p.isBodyByte)
	if n < p.minBody || p.maxBody > 0 && n > p.maxBody || p.minRun > 0 && !hasMixedRun(body[:n], p.minRun) ||
		p.firstByte != "" && strings.IndexByte(p.firstByte, body[0]) < 0 {
		return 0
	}
	n += len(p.prefix)
	if p.rest == nil {
		return n
	}
	rest := p.rest.match(s[n:])
	if rest == 0 {
		return 0
	}
	return n + rest
}

// Masker hides secrets in the lines of one source, such as a log: tokens of known providers, private keys, and given values. It
// stores whether a private key continues on the next lines, so each source needs its own Masker. The zero value is ready for
// use. Only one goroutine at a time may use a Masker.
type Masker struct {
	KeyLinesLeft int // number of following lines that may still belong to a private key
}

// MaxKeyLines is the maximum number of lines in a private key.
const MaxKeyLines = 200

// minCompareBudget is the number of bytes that Hide compares with secrets even in a short chunk. An agent chooses both its
// secrets and its lines, and lines with the beginnings of long secrets would use up PID 1's processor time.
const minCompareBudget = 64 << 10

// Hide returns chunk, which consists of whole lines, with each secret replaced by [Masked]. Without a secret it returns chunk
// itself, otherwise a copy. The last line may lack its newline; then the result is always a copy. A nil set is empty. If too
// much of the chunk resembles a secret, Hide gives up: in each further line it hides everything from the first byte that can
// begin a secret.
func (m *Masker) Hide(chunk []byte, set *Secrets) []byte {
	if n := len(chunk); n > 0 && chunk[n-1] != '\n' {
		return bytes.TrimSuffix(m.Hide(append(bytes.Clone(chunk), '\n'), set), []byte{'\n'})
	}
	set = cmp.Or(set, noSecrets())
	var out []byte
	last, left := 0, minCompareBudget+8*len(chunk)
	cover := func(from, to int) {
		out = append(append(out, chunk[last:from]...), Masked...)
		last = to
	}
	inWord := false
	i := m.hideKeyLines(chunk, 0, cover)
	for i < len(chunk) {
		c := chunk[i]
		kind := set.kinds[c]
		if kind&(kindLiteral|kindOther) == 0 && (kind&kindToken == 0 || inWord) {
			inWord = kind&kindWord != 0
			i++
			continue
		}
		if kind&kindLiteral != 0 {
			n, cost := set.match(chunk[i:])
			if left -= cost; left < 0 {
				n = bytes.IndexByte(chunk[i:], '\n')
			}
			if n > 0 {
				cover(i, i+n)
				i, inWord = i+n, true
				continue
			}
		}
		if kind&kindToken != 0 && !inWord {
			if from, to := secretTokenRange(chunk[i:]); to > 0 {
				cover(i+from, i+to)
				i, inWord = i+to, true
				continue
			}
			if n := keyHeaderLength(chunk[i:]); n > 0 {
				i = m.hideKeyBody(chunk, i+n, cover)
				inWord = false
				continue
			}
		}
		inWord = kind&kindWord != 0
		i++
		switch c {
		case '\n':
			i = m.hideKeyLines(chunk, i, cover)
		case ':':
			if from, to := telegramTokenRange(chunk, i-1); to > 0 && from >= last {
				cover(from, to)
				i, inWord = to, true
			}
		case '\\': // an escape such as \n, whose letter is not part of a word
			if i < len(chunk) && strings.IndexByte(`nrtbf"'/\`, chunk[i]) >= 0 {
				i++
			}
		case '\x1b': // a sequence that sets a colour
			i += escapeLength(chunk[i:])
		}
	}
	if out == nil {
		return chunk
	}
	return append(out, chunk[last:]...)
}

// HideText returns text with [Masked] in place of each secret of a known shape.
func HideText(text string) string { return string(new(Masker).Hide([]byte(text), nil)) }

// match returns the length of the longest value of the set at the beginning of text, or 0. The result cost estimates the work: the
// number of compared bytes and values.
func (s *Secrets) match(text []byte) (n, cost int) {
	text = text[:min(len(text), s.longest)]
	after := sort.Search(len(s.values), func(i int) bool { return s.values[i].text > string(text) })
	at := after - 1
	n = commonLength(text, s.values[at].text)
	cost = n + commonLength(text, s.values[min(after, len(s.values)-1)].text)
	for ; len(s.values[at].text) > n; cost++ {
		at = s.values[at].prefixIndex
	}
	return len(s.values[at].text), cost
}

func commonLength(a []byte, b string) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// secretTokenRange returns the range of the secret part of a token at the beginning of s. Without a token, to is 0.
func secretTokenRange(s []byte) (from, to int) {
	for _, p := range tokenShapes()[s[0]] {
		if n := p.match(s); n > 0 {
			return 0, n
		}
	}
	const name = "bearer "
	if len(s) > len(name) && bytes.EqualFold(s[:len(name)], []byte(name)) {
		n := classLength(s[len(name):], isBearerByte)
		if hasMixedRun(s[len(name):len(name)+n], 12) {
			return len(name), len(name) + n
		}
	}
	return 0, 0
}

// telegramTokenRange returns the range of the token of a Telegram bot around a colon: the bot's number, the colon, and 35 bytes.
func telegramTokenRange(s []byte, colon int) (from, to int) {
	body := s[colon+1:]
	if !hasPrefix(body, "AA") || classLength(body, isKeyByte) != 35 {
		return 0, 0
	}
	from = len(bytes.TrimRight(s[:colon], "0123456789"))
	if digits := colon - from; digits < 8 || digits > 10 {
		return 0, 0
	}
	return from, colon + 1 + 35
}

const privateKeyEnd = "PRIVATE KEY-----"

// keyHeaderLength returns the length of the header of a private key (RFC 7468) at the beginning of s, or 0.
func keyHeaderLength(s []byte) int {
	const begin, longest = "-----BEGIN ", 40
	if !hasPrefix(s, begin) {
		return 0
	}
	at := bytes.Index(s[:min(len(s), len(begin)+longest)], []byte(privateKeyEnd))
	if at < 0 || bytes.IndexByte(s[:at], '\n') >= 0 {
		return 0
	}
	return at + len(privateKeyEnd)
}

// hideKeyBody hides the part of a private key that follows its header on the same line, where newlines may be escaped. at is
// the position after the header. If nothing follows on this line, the next lines belong to the key. hideKeyBody returns the
// position after the hidden part.
func (m *Masker) hideKeyBody(chunk []byte, at int, cover func(from, to int)) int {
	end := at + bytes.IndexByte(chunk[at:], '\n')
	if len(bytes.TrimRight(chunk[at:end], " \t\r")) == 0 {
		m.KeyLinesLeft = MaxKeyLines
		return end
	}
	n := classLength(chunk[at:end], func(c byte) bool { return isBase64Byte(c) || c == '\\' || c == ' ' || c == '\r' })
	if n >= 16 {
		cover(at, at+n)
	}
	return at + n
}

// timestampLen is the length of the time before each line of hinit's log files, with the two spaces after it.
const timestampLen = len("2006-01-02 15:04:05.000000000  ")

// hideKeyLines hides the line at position at and the lines after it as long as they belong to a private key. It returns the
// position of the first line that does not. Lines of other output may come between the lines of a key, so only the footer ends
// the key.
func (m *Masker) hideKeyLines(chunk []byte, at int, cover func(from, to int)) int {
	for m.KeyLinesLeft > 0 && at < len(chunk) {
		m.KeyLinesLeft--
		from, end := at, at+bytes.IndexByte(chunk[at:], '\n')
		if end-at >= timestampLen && string(chunk[at+timestampLen-2:at+timestampLen]) == "  " {
			from += timestampLen
		}
		line := bytes.TrimSpace(chunk[from:end])
		switch {
		case len(line) == 0, hasPrefix(line, "Proc-Type:"), hasPrefix(line, "DEK-Info:"):
		case len(line) <= 80 && classLength(line, isBase64Byte) == len(line):
			from += bytes.Index(chunk[from:end], line)
			cover(from, from+len(line))
		default:
			if bytes.Contains(line, []byte("-----END ")) {
				m.KeyLinesLeft = 0
			}
			return at
		}
		at = end + 1
	}
	return at
}

// escapeLength returns the length of the terminal control sequence at the beginning of s, the text after the escape byte.
func escapeLength(s []byte) int {
	if len(s) == 0 || s[0] != '[' {
		return 0
	}
	n := 1 + classLength(s[1:], func(c byte) bool { return c >= ' ' && c < '@' })
	if n < len(s) && s[n] >= '@' && s[n] <= '~' {
		n++
	}
	return n
}

func hasPrefix(s []byte, prefix string) bool { return bytes.HasPrefix(s, []byte(prefix)) }

// classLength returns how many bytes at the beginning of s belong to a class.
func classLength(s []byte, class func(byte) bool) int {
	for i, c := range s {
		if !class(c) {
			return i
		}
	}
	return len(s)
}

// hasMixedRun reports whether s contains a run of letters and digits, with at least one of each, of at least the length least.
func hasMixedRun(s []byte, least int) bool {
	n, letters, digits := 0, 0, 0
	for _, c := range s {
		switch {
		case c >= '0' && c <= '9':
			digits++
		case isAlphanumeric(c):
			letters++
		default:
			n, letters, digits = 0, 0, 0
			continue
		}
		if n++; n >= least && letters > 0 && digits > 0 {
			return true
		}
	}
	return false
}

func isAlphanumeric(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' }

func isWordByte(c byte) bool { return isAlphanumeric(c) || c == '_' }

func isKeyByte(c byte) bool { return isWordByte(c) || c == '-' }

func isBase64Byte(c byte) bool { return isAlphanumeric(c) || c == '+' || c == '/' || c == '=' }

func isBearerByte(c byte) bool { return isBase64Byte(c) || isKeyByte(c) || c == '.' || c == '~' }

func isUpperOrDigit(c byte) bool { return c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' }
