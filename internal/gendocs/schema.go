package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"hinit/internal/config"
	"hinit/internal/gendocs/reference"
)

// choicesOf returns all values that a key can have, or nil if they are not a fixed list.
func choicesOf(k reference.Key) []string {
	if choices, ok := strings.CutPrefix(typeWords(k), "`"); ok {
		return strings.Split(strings.TrimSuffix(choices, "`"), "`, `")
	}
	return nil
}

var quoted = regexp.MustCompile("`([^`]+)`")

func wordsIn(text string) (words []string) {
	for _, m := range quoted.FindAllStringSubmatch(text, -1) {
		words = append(words, m[1])
	}
	return words
}

// anyCase returns a regular expression that matches one of the words, with or without the prefix, in upper or lower case.
func anyCase(prefix string, words []string) string {
	letters := func(word string) string {
		var b strings.Builder
		for _, r := range word {
			if lower := unicode.ToLower(r); lower != r {
				fmt.Fprintf(&b, "[%c%c]", r, lower)
			} else {
				b.WriteRune(r)
			}
		}
		return b.String()
	}
	for i, w := range words {
		words[i] = letters(w)
	}
	return "^(" + letters(prefix) + ")?(" + strings.Join(words, "|") + ")$"
}

var fromTo = regexp.MustCompile(`expected a number from (\S+) to (\S+), got`)

func bound(node object, path string) {
	text := "987654321"
	keys := strings.Split(strings.ReplaceAll(strings.ReplaceAll(path, "NAME", "name"), "checks[].", "services.name.checks[]."), ".")
	for _, key := range slices.Backward(keys) {
		name, list := strings.CutSuffix(key, "[]")
		if list {
			text = "[{kind: alive, file: {path: /x}, " + strings.TrimPrefix(text, "{") + "]"
		}
		text = "{" + name + ": " + text + "}"
	}
	text = strings.Replace(text, "{name: {", "{name: {command: [x], ", 1)
	_, err := config.Load(config.Options{Text: []byte(text), Env: func(string) (string, bool) { return "", false }})
	if err == nil {
		return
	}
	m := fromTo.FindStringSubmatch(err.Error())
	if m == nil {
		return
	}
	least, most := object{"minimum": json.Number(m[1])}, json.Number(m[2])
	node["maximum"] = most
	if m[1] != "0" && !strings.HasPrefix(m[1], "-") && allowsZero(text) {
		node["anyOf"] = []object{{"const": 0}, least}
		return
	}
	node["minimum"] = least["minimum"]
}

// allowsZero reports whether the number in the configuration text may be 0, which means that the key is not set.
func allowsZero(text string) bool {
	text = strings.Replace(text, "987654321", "0", 1)
	_, err := config.Load(config.Options{Text: []byte(text), Env: func(string) (string, bool) { return "", false }})
	return err == nil || !fromTo.MatchString(err.Error())
}

func limitsSchema(names []string) object {
	value := object{"type": []string{"integer", "string"}, "minimum": 0}
	return object{"type": "object", "propertyNames": object{"enum": names}, "additionalProperties": value}
}
