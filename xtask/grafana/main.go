// Command grafana checks dashboard files against Grafana's own schema. Each field must have the
// right type, no required field may be missing, and no field may be unknown (in fieldConfig only
// below custom). The command prints one line per invalid file.
//
// Without files it prints a JSON Schema of its types (schema.go), which the tests record.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

func main() {
	// Only the plugins that the dashboards use are registered. All plugins would take twice as long to
	// compile.
	cog.NewRuntime().RegisterPanelcfgVariant(stat.VariantConfig())
	cog.NewRuntime().RegisterPanelcfgVariant(timeseries.VariantConfig())
	cog.NewRuntime().RegisterDataqueryVariant(prometheus.VariantConfig())
	if len(os.Args) == 1 {
		printSchema()
	}
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
	// Without a fault, the strict function returns an error that is not nil and has an empty text, and
	// it loses the panels. So it only finds faults, and the file is parsed a second time.
	var strict, parsed dashboard.Dashboard
	if err := strict.UnmarshalJSONStrict(text); err != nil && err.Error() != "" {
		return err
	}
	if err := json.Unmarshal(text, &parsed); err != nil {
		return err
	}
	panels := 0
	for _, item := range parsed.Panels {
		inner := []dashboard.Panel{}
		if item.Panel != nil {
			inner = append(inner, *item.Panel)
		}
		if item.RowPanel != nil {
			inner = append(inner, item.RowPanel.Panels...)
		}
		for _, panel := range inner {
			panels++
			// The options of a panel without a registered plugin are not checked.
			if panel.Type != "stat" && panel.Type != "timeseries" {
				return fmt.Errorf("no plugin is registered for panels of type %q", panel.Type)
			}
		}
	}
	if panels == 0 {
		return fmt.Errorf("the dashboard has no panels")
	}
	return parsed.Validate()
}
