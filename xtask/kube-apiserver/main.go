// The API server of Kubernetes, unchanged. k8s.io/kubernetes takes its parts by `replace`, which
// `go install` of a version rejects, so this module repeats these lines. Its versions are those of
// Helm: Go then compiles the parts once for both programs.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	os.Exit(cli.Run(app.NewAPIServerCommand()))
}
