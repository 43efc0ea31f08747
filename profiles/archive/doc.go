// Package archive makes an archive of a profile while its gateway runs, and makes a profile of an archive.
//
// An archive is a tar stream. Its first file says what it is and how large, each file has its SHA-256 in its header, and the last file is the
// checksum of all. [Export] copies the home into a snapshot in that home, until nothing changes any more, and sends that. [Import] unpacks into a
// directory beside the homes; one rename makes it the home of a profile.
//
// The package trusts neither the home nor the archive. It follows links that an agent has made, so root calls it in [fsutil.Actor.Do], as the
// user of the home. It owns no goroutine.
package archive
