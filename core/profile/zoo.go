package profile

import "time"

// The published zoos: Symphony (Chen, Deng, Canumalla, Xin, Philipose, Krishnamurthy), appendix B.
// Table 5 has 35 models although the text speaks of 37; table 6 has 37.

func microseconds(alpha, beta, sloMS int64, name string) Entry {
	return Entry{
		Name:  name,
		Alpha: time.Duration(alpha) * time.Microsecond,
		Beta:  time.Duration(beta) * time.Microsecond,
		SLO:   time.Duration(sloMS) * time.Millisecond,
	}
}

// GTX1080Ti returns table 5: profiles on an NVIDIA 1080Ti.
// α and β are in µs, SLOs in ms.
func GTX1080Ti() []Entry {
	// In the table's order, which is by falling β/α.
	return []Entry{
		microseconds(570, 14348, 33, "NASNetMobile"),
		microseconds(335, 5350, 20, "MobileNetV3Small"),
		microseconds(1271, 13618, 37, "DenseNet169"),
		microseconds(1061, 10312, 29, "DenseNet121"),
		microseconds(1733, 15687, 45, "DenseNet201"),
		microseconds(1006, 7493, 23, "EfficientNetV2B0"),
		microseconds(820, 5256, 20, "MobileNetV3Large"),
		microseconds(1964, 8771, 33, "InceptionV3"),
		microseconds(1661, 7247, 27, "EfficientNetV2B1"),
		microseconds(1409, 5947, 23, "ResNet50V2"),
		microseconds(3471, 13049, 53, "ResNet152V2"),
		microseconds(2438, 9095, 37, "ResNet101V2"),
		microseconds(5090, 18368, 77, "InceptionResNetV2"),
		microseconds(1569, 5586, 23, "EfficientNetB0"),
		microseconds(1180, 3483, 20, "MobileNetV2"),
		microseconds(3164, 9065, 43, "ResNet101"),
		microseconds(2489, 6674, 33, "EfficientNetB1"),
		microseconds(2050, 5378, 27, "ResNet50"),
		microseconds(2254, 5896, 29, "EfficientNetV2B2"),
		microseconds(3059, 7857, 40, "VGG19"),
		microseconds(4599, 11212, 59, "ResNet152"),
		microseconds(1009, 2390, 20, "MobileNet"),
		microseconds(2734, 5786, 33, "VGG16"),
		microseconds(3446, 5333, 38, "EfficientNetB2"),
		microseconds(4072, 5981, 44, "EfficientNetV2B3"),
		microseconds(17656, 18952, 179, "NASNetLarge"),
		microseconds(8463, 8862, 85, "EfficientNetV2S"),
		microseconds(5924, 4849, 57, "EfficientNetB3"),
		microseconds(40313, 28208, 378, "EfficientNetV2L"),
		microseconds(22619, 14786, 210, "EfficientNetV2M"),
		microseconds(23435, 10301, 208, "EfficientNetB5"),
		microseconds(4751, 2046, 42, "Xception"),
		microseconds(23778, 9729, 209, "SSDMobilenet"),
		microseconds(12088, 4412, 105, "EfficientNetB4"),
		microseconds(7008, 159, 56, "BERT"),
	}
}

// A100 returns table 6: profiles on an NVIDIA A100.
// α and β are in µs, SLOs in ms.
func A100() []Entry {
	// In the table's order, which is by falling β/α.
	return []Entry{
		microseconds(54, 10546, 21, "DenseNet121"),
		microseconds(304, 14345, 31, "DenseNet201"),
		microseconds(289, 13365, 29, "DenseNet169"),
		microseconds(135, 5560, 20, "ResNet50V2"),
		microseconds(115, 4326, 20, "EfficientNetB0"),
		microseconds(284, 8266, 20, "ResNet101"),
		microseconds(390, 10449, 24, "ResNet152"),
		microseconds(391, 8219, 20, "ResNet101V2"),
		microseconds(196, 4072, 20, "MobileNetV3Large"),
		microseconds(291, 5797, 20, "EfficientNetB1"),
		microseconds(268, 5172, 20, "ResNet50"),
		microseconds(589, 10054, 24, "ResNet152V2"),
		microseconds(190, 2892, 20, "MobileNetV2"),
		microseconds(543, 7596, 20, "EfficientNetV2B3"),
		microseconds(1112, 15270, 39, "InceptionResNetV2"),
		microseconds(443, 5929, 20, "EfficientNetV2B1"),
		microseconds(536, 6860, 20, "NASNetMobile"),
		microseconds(377, 4272, 20, "EfficientNetV2B0"),
		microseconds(520, 5333, 20, "EfficientNetB2"),
		microseconds(315, 3211, 20, "MobileNetV3Small"),
		microseconds(913, 6732, 20, "InceptionV3"),
		microseconds(285, 1901, 20, "MobileNet"),
		microseconds(1454, 7378, 26, "EfficientNetV2S"),
		microseconds(901, 4532, 20, "EfficientNetV2B2"),
		microseconds(660, 2252, 20, "VGG16"),
		microseconds(1239, 4205, 20, "EfficientNetB3"),
		microseconds(801, 2638, 20, "Xception"),
		microseconds(893, 2181, 20, "VGG19"),
		microseconds(3464, 7154, 42, "NASNetLarge"),
		microseconds(4479, 6861, 49, "EfficientNetV2M"),
		microseconds(2881, 4103, 31, "EfficientNetB4"),
		microseconds(7520, 6675, 73, "EfficientNetV2L"),
		microseconds(6121, 2283, 53, "EfficientNetB5"),
		microseconds(19448, 4442, 164, "SSDMobilenet"),
		microseconds(9754, 1984, 82, "EfficientNetB6"),
		microseconds(16339, 2751, 136, "EfficientNetB7"),
		microseconds(7353, 222, 59, "BERT"),
	}
}
