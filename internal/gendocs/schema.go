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

// keyChoices returns all values that a key can have, or nil if they are not a fixed list.
func keyChoices(k reference.Key) []string {
	if choices, ok := strings.CutPrefix(typeText(k), "`"); ok {
		return strings.Split(strings.TrimSuffix(choices, "`"), "`, `")
	}
	return nil
}

var backquoted = regexp.MustCompile("`([^`]+)`")

func backquotedWords(text string) (words []string) {
	for _, m := range backquoted.FindAllStringSubmatch(text, -1) {
		words = append(words, m[1])
	}
	return words
}

// anyCasePattern returns a regular expression that matches one of the words, with or without the prefix, in upper or lower case.
func anyCasePattern(prefix string, words []string) string {
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

var rangePattern = regexp.MustCompile(`expected a number from (\S+) to (\S+), got`)

func addBounds(node jsonObject, path string) {
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
	_, err := config.Load(config.Options{Content: []byte(text), Env: func(string) (string, bool) { return "", false }})
	if err == nil {
		return
	}
	m := rangePattern.FindStringSubmatch(err.Error())
	if m == nil {
		return
	}
	least, most := jsonObject{"minimum": json.Number(m[1])}, json.Number(m[2])
	node["maximum"] = most
	if m[1] != "0" && !strings.HasPrefix(m[1], "-") && allowsZero(text) {
		node["anyOf"] = []jsonObject{{"const": 0}, least}
		return
	}
	node["minimum"] = least["minimum"]
}

// allowsZero reports whether the number in the configuration text may be 0, which means that the key is not set.
func allowsZero(text string) bool {
	text = strings.Replace(text, "987654321", "0", 1)
	_, err := config.Load(config.Options{Content: []byte(text), Env: func(string) (string, bool) { return "", false }})
	return err == nil || !rangePattern.MatchString(err.Error())
}

func limitsSchema(names []string) jsonObject {
	value := jsonObject{"type": []string{"integer", "string"}, "minimum": 0}
	return jsonObject{"type": "object", "propertyNames": jsonObject{"enum": names}, "additionalProperties": value}
}
