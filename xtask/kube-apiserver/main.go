// Command kube-apiserver is the unchanged API server of Kubernetes. The go.mod of k8s.io/kubernetes
// has `replace` lines, and `go install` of a version rejects such a module, so this module repeats
// these lines. It has the same versions as Helm, so Go compiles the shared packages only once.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	os.Exit(cli.Run(app.NewAPIServerCommand()))
}
