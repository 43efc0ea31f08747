package config_test

import (
	"slices"
	"testing"

	"hinit/internal/config"
)

func TestOnlyFilesOfSecretsAreNamed(t *testing.T) {
	environ := []string{
		"OPENAI_API_KEY_FILE=/run/secrets/openai", "GROQ_API_KEY_FILE=/run/secrets/agent/GROQ", "EMPTY=", "EMPTY_FILE=/run/secrets/empty",
		"SET=1", "SET_FILE=/run/secrets/set", "SSL_CERT_FILE=/etc/ssl/cert.pem", "AWS_WEB_IDENTITY_TOKEN_FILE=/var/run/secrets/eks/token",
		"HINIT_WEB_TOKEN_FILE=/run/secrets/hinit-web/token", "UP_FILE=/run/secrets/../../etc/shadow", "_FILE=/run/secrets/x", "REL_FILE=secrets/x", "HOME=/run/secrets/home",
	}
	want := []string{"EMPTY=/run/secrets/empty", "GROQ_API_KEY=/run/secrets/agent/GROQ", "OPENAI_API_KEY=/run/secrets/openai"}
	if got := config.SecretFiles(environ); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}
