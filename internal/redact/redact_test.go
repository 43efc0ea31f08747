package redact_test

import (
	"testing"

	"hinit/internal/redact"
)

func TestSecretsByTheirNames(t *testing.T) {
	for _, name := range []string{
		"OPENAI_API_KEY", "telegram_token", "DB_PASS", "PASS", "PASSPHRASE", "SSH_PASSPHRASE", "DB_PASSWORD", "MYSQL_PWD", "GITHUB_PAT",
		"AWS_SECRET_ACCESS_KEY", "Authorization", "Set-Cookie", "X-Api-Key", "GOOGLE_CREDENTIALS", "SMTP_PASS_2",
	} {
		if !redact.IsSecretName(name) {
			t.Errorf("%s is shown", name)
		}
	}
	for _, name := range []string{
		"PATH", "PWD", "OLDPWD", "COMPASS", "BYPASS_PROXY", "PATTERN", "MAX_TOKENS", "API_KEY_FILE", "TOKEN_TTL", "DATABASE_URL", "HOME", "",
	} {
		if redact.IsSecretName(name) {
			t.Errorf("%s is hidden", name)
		}
	}
}

func TestThePasswordOfAURLIsHidden(t *testing.T) {
	for _, c := range []struct{ name, value, secret, shown string }{
		{"DATABASE_URL", "postgres://hermes:s3cr3t-pw@db:5432/x?y=1", "s3cr3t-pw", "postgres://hermes:********@db:5432/x?y=1"},
		{"REDIS", "redis://:only-password@cache", "only-password", "redis://:********@cache"},
		{"PROXY", "http://user:p@ss:word@proxy:3128", "p@ss:word", "http://user:********@proxy:3128"},
		{"API_KEY", "plain", "plain", "********"},
		{"SITE", "https://example.org/a:b@c", "", "https://example.org/a:b@c"},
		{"SITE", "https://user@example.org", "", "https://user@example.org"},
		{"WORDS", "no url: a@b", "", "no url: a@b"},
		{"EMPTY", "", "", ""},
	} {
		if got := redact.SecretPart(c.name, c.value); got != c.secret {
			t.Errorf("Secret(%q, %q) = %q, want %q", c.name, c.value, got, c.secret)
		}
		if got := redact.HideValue(c.name, c.value); got != c.shown {
			t.Errorf("Value(%q, %q) = %q, want %q", c.name, c.value, got, c.shown)
		}
	}
}

func TestOfAWebhookOnlyTheHostIsShown(t *testing.T) {
	for address, want := range map[string]string{
		"https://hooks.example.org/services/T0/B0/s3cr3t": "https://hooks.example.org/********",
		"https://example.org:8443?token=s3cr3t":           "https://example.org:8443/********",
		"http://who:s3cr3t@example.org/":                  "http://********@example.org/",
		"http://s3cr3t@example.org/x#y":                   "http://********@example.org/********",
		"http://127.0.0.1:9":                              "http://127.0.0.1:9",
		"s3cr3t":                                          "********",
		"http://[s3cr3t":                                  "********",
	} {
		if got := redact.HideAddress(address); got != want {
			t.Errorf("Address(%q) = %q, want %q", address, got, want)
		}
	}
}
