// Package scene draws street scenes with known contents: vehicles of six kinds, people with six activities, scenery,
// light, weather and occlusion. Training and load generation use its images, whose truth is known exactly.
//
// A Scene is composed once, in metres and without pixels, and drawn by a Renderer through any view: the whole street,
// or a crop around one object. The package reads no file, keeps no state between scenes, and draws random numbers
// only from the given generator.
//
// Invariants:
//
//	S1  The same generator state and Conditions give the same scene; the same scene and view give the same bytes on one
//	    machine type.
//	S2  Every box lies within its image and encloses the visible and hidden parts of its object clipped to the image;
//	    Visible is the share of the object's own pixels that nothing covers.
//
// A Renderer is not safe for concurrent use. Scenes and Conditions are plain data.
package scene
