package logrotate

import "unicode/utf8"

// format appends line and a newline to dst. line has no newline at its end. In the mode JSON, format adds the time, the profile
// of src and the stream. In the mode Prefixed, it adds only the profile.
func (c *console) format(dst []byte, mode ConsoleMode, src *source, line []byte) []byte {
	switch mode {
	case JSON:
		dst = append(dst, `{"time":"`...)
		dst = append(dst, c.stamp...)
		dst = append(dst, `","profile":`...)
		dst = appendJSON(dst, src.profile)
		dst = append(dst, `,"stream":"`...)
		dst = append(dst, c.stream...)
		dst = append(dst, `","message":`...)
		dst = appendJSON(dst, line)
		return append(dst, "}\n"...)
	case Prefixed:
		dst = append(dst, src.profile...)
		dst = append(dst, " | "...)
	case Raw, Off:
	}
	dst = append(dst, line...)
	return append(dst, '\n')
}

// appendJSON appends s as a JSON string (RFC 8259, section 7).
func appendJSON[T string | []byte](dst []byte, s T) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c == '\t':
			dst = append(dst, '\\', 't')
		case c == '\r':
			dst = append(dst, '\\', 'r')
		case c < ' ':
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		case c >= utf8.RuneSelf:
			r, size := utf8.DecodeRuneInString(string(s[i:min(i+utf8.UTFMax, len(s))]))
			dst = utf8.AppendRune(dst, r) // for invalid UTF-8, r is U+FFFD
			i += size
			continue
		default:
			dst = append(dst, c)
		}
		i++
	}
	return append(dst, '"')
}
