// Package picture makes rows of tensors from JPEG and PNG files that strangers send.
//
// ReadHeader reads only what a file says of itself. It bounds the pixels, and tells the memory that Decode will take,
// before any is taken. Decode checks its context while it reads, so that no file holds a decoder for longer than its
// request lives.
//
// A picture is taken as it is stored: its EXIF orientation is not applied, its alpha is dropped, of 16 bits the upper
// 8 are used, and of an animated PNG the picture that stands for it.
package picture
