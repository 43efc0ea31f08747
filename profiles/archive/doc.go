// Package archive exports a profile to an archive while its gateway runs, and imports a profile from an archive.
//
// An archive is a tar stream. The first file is the head: it describes the archive and gives its size. The header of each other
// file has the SHA-256 of that file. The last file is a checksum of the whole archive. [Export] copies the home into a snapshot,
// in several passes, until a pass finds no change. It then sends the snapshot. [Import] unpacks the archive into a directory
// beside the homes. A single rename then makes that directory the home of the profile.
//
// The package trusts neither the home nor the archive. It follows links that an agent has made. So root must call it in
// [fsutil.Actor.Do], as the user of the home. It owns no goroutine.
package archive
