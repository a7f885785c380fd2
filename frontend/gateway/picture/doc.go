// Package picture makes rows of tensors from JPEG and PNG files that strangers send.
//
// ReadHeader reads only a file's header. It bounds the number of pixels, and returns how much memory Decode will take,
// before Decode takes any. Decode checks its context while it reads, so that no file occupies a decoder after its
// request has ended.
//
// Pixels are used as they are stored: EXIF orientation is ignored, alpha is dropped, 16 bits are cut to the upper 8,
// and an animated PNG gives its default picture.
package picture
