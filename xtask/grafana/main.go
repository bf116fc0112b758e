// Command grafana checks dashboard files by Grafana's own schema: each field has the right type, no
// field is unknown, and no required field is missing. It prints one line per fault.
package main

import (
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

func main() {
	plugins.RegisterDefaultPlugins()
	failed := false
	for _, file := range os.Args[1:] {
		if err := check(file); err != nil {
			fmt.Printf("%s: %v\n", file, err)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
}

func check(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var parsed dashboard.Dashboard
	if err := parsed.UnmarshalJSONStrict(text); err != nil {
		return err
	}
	return parsed.Validate()
}
