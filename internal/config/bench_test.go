package config

import "testing"

// BenchmarkLoad measures how long PID 1 needs at its start to load the configuration: without a file, and with a
// typical file.
func BenchmarkLoad(b *testing.B) {
	for name, text := range map[string]string{
		"defaults": "",
		"file":     "home: /data\nrestart: {initial: 2s, max: 2m}\nservices:\n  web: {command: [httpd, -p, \"80\"], user: www, limits: {nofile: 1024}}\n",
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				l := &loader{cfg: Defaults(), Options: Options{Env: envLookup(nil)}}
				if _, err := l.buildConfig([]byte(text)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
