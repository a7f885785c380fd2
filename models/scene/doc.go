// Package scene draws street scenes and knows what is in them: vehicles of six kinds, people doing
// six things, scenery, light, weather and occlusion. It feeds training and load
// generation with images whose truth is known exactly.
//
// A Scene is composed once, in metres and without pixels, and drawn by a Renderer through any view:
// the whole street, or a crop around one object. It reads no file, keeps no state between scenes and
// draws no random number but from the generator it is given.
//
// Invariants:
//
//	S1  The same generator state and Conditions give the same scene; the same scene and view give the
//	    same bytes on one machine type.
//	S2  Every box lies within its image and encloses the visible and hidden parts of its object
//	    clipped to the image; Visible is the share of the object's own pixels that nothing covers.
//
// A Renderer belongs to one goroutine. Scenes and Conditions are plain data.
package scene
