package main

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// object is a JSON object. Go writes its members in the order of their names.
type object = map[string]any

// printSchema prints a JSON Schema of a dashboard.
func printSchema() {
	definitions := object{}
	root := schemaOf(reflect.TypeFor[dashboard.Dashboard](), definitions)
	root["$defs"] = definitions
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(root); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// schemaOf returns the schema of a type. It adds the schemas of structs to the definitions.
func schemaOf(kind reflect.Type, definitions object) object {
	switch kind.Kind() {
	case reflect.Pointer:
		return schemaOf(kind.Elem(), definitions)
	case reflect.Slice:
		return object{"type": "array", "items": schemaOf(kind.Elem(), definitions)}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": schemaOf(kind.Elem(), definitions)}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Float32, reflect.Float64:
		return object{"type": "number"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return object{"type": "integer"}
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return object{"type": "integer", "minimum": 0}
	case reflect.Interface:
		if kind.NumMethod() > 0 {
			// All queries of the dashboards are of Prometheus.
			return schemaOf(reflect.TypeFor[prometheus.Dataquery](), definitions)
		}
		return object{}
	case reflect.Struct:
		if kind == reflect.TypeFor[time.Time]() {
			return object{"type": "string"}
		}
		name := kind.String()
		if _, known := definitions[name]; !known {
			// A field may have the type of its struct.
			definitions[name] = object{}
			definitions[name] = schemaOfStruct(kind, definitions)
		}
		return object{"$ref": "#/$defs/" + name}
	default:
		panic("a field has the type " + kind.String())
	}
}

func schemaOfStruct(kind reflect.Type, definitions object) object {
	properties, required, choices := object{}, []string{}, []object{}
	for index := range kind.NumField() {
		field := kind.Field(index)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		schema := schemaOf(field.Type, definitions)
		// A type that stands for several types has a field for each of them, with an equal name.
		if name == field.Name {
			choices = append(choices, schema)
			continue
		}
		properties[name] = schema
		if !strings.Contains(options, "omitempty") {
			required = append(required, name)
		}
	}
	if len(choices) > 0 {
		return object{"anyOf": choices}
	}
	schema := object{
		"type": "object", "properties": properties, "required": required,
		"additionalProperties": false,
	}
	if kind == reflect.TypeFor[dashboard.RowPanel]() {
		properties["type"] = object{"const": "row"}
	}
	if kind == reflect.TypeFor[dashboard.Panel]() {
		properties["type"] = object{"enum": []string{"stat", "timeseries"}}
		schema["allOf"] = []object{
			schemaOfPlugin("stat", reflect.TypeFor[stat.Options](), nil, definitions),
			schemaOfPlugin(
				"timeseries", reflect.TypeFor[timeseries.Options](),
				reflect.TypeFor[timeseries.FieldConfig](), definitions,
			),
		}
	}
	return schema
}

// schemaOfPlugin returns a schema of the members of a panel whose types depend on its plugin.
func schemaOfPlugin(plugin string, options, custom reflect.Type, definitions object) object {
	properties := object{"options": schemaOf(options, definitions)}
	if custom != nil {
		defaults := object{"properties": object{"custom": schemaOf(custom, definitions)}}
		properties["fieldConfig"] = object{"properties": object{"defaults": defaults}}
	}
	isPlugin := object{"properties": object{"type": object{"const": plugin}}}
	return object{"if": isPlugin, "then": object{"properties": properties}}
}
