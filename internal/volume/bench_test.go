package volume

import (
	"context"
	"fmt"
	"os"
	"testing"

	"hinit/internal/boot"
)

// BenchmarkPrepare compares the boot on a volume with 20,000 files with the boot on an empty volume.
func BenchmarkPrepare(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("not root")
	}
	for _, files := range []int{0, 20000} {
		b.Run(fmt.Sprintf("files=%d", files), func(b *testing.B) {
			home := newVolumeDir(b)
			o, _ := options(b, home, nil)
			writeInstallDir(b, o)
			mustPrepareBoot(b, o)
			chownAll(b, home, agentUID)
			_ = os.Remove(home + "/" + boot.RepairPendingFile)
			makeRootFiles(b, home+"/profiles/coder/work", files/2)
			makeRootFiles(b, home+"/workspace", files/2)
			for b.Loop() {
				prepareBoot(context.Background(), o)
			}
		})
	}
}
