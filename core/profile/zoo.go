package profile

import "time"

// The published zoos: Symphony (Chen, Deng, Canumalla, Xin, Philipose, Krishnamurthy), appendix B.
// Table 5 has 35 models although the text speaks of 37; table 6 has 37.

func us(alpha, beta, sloMS int64, name string) Entry {
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
	return []Entry{
		us(570, 14348, 33, "NASNetMobile"),
		us(335, 5350, 20, "MobileNetV3Small"),
		us(1271, 13618, 37, "DenseNet169"),
		us(1061, 10312, 29, "DenseNet121"),
		us(1733, 15687, 45, "DenseNet201"),
		us(1006, 7493, 23, "EfficientNetV2B0"),
		us(820, 5256, 20, "MobileNetV3Large"),
		us(1964, 8771, 33, "InceptionV3"),
		us(1661, 7247, 27, "EfficientNetV2B1"),
		us(1409, 5947, 23, "ResNet50V2"),
		us(3471, 13049, 53, "ResNet152V2"),
		us(2438, 9095, 37, "ResNet101V2"),
		us(5090, 18368, 77, "InceptionResNetV2"),
		us(1569, 5586, 23, "EfficientNetB0"),
		us(1180, 3483, 20, "MobileNetV2"),
		us(3164, 9065, 43, "ResNet101"),
		us(2489, 6674, 33, "EfficientNetB1"),
		us(2050, 5378, 27, "ResNet50"),
		us(2254, 5896, 29, "EfficientNetV2B2"),
		us(3059, 7857, 40, "VGG19"),
		us(4599, 11212, 59, "ResNet152"),
		us(1009, 2390, 20, "MobileNet"),
		us(2734, 5786, 33, "VGG16"),
		us(3446, 5333, 38, "EfficientNetB2"),
		us(4072, 5981, 44, "EfficientNetV2B3"),
		us(17656, 18952, 179, "NASNetLarge"),
		us(8463, 8862, 85, "EfficientNetV2S"),
		us(5924, 4849, 57, "EfficientNetB3"),
		us(40313, 28208, 378, "EfficientNetV2L"),
		us(22619, 14786, 210, "EfficientNetV2M"),
		us(23435, 10301, 208, "EfficientNetB5"),
		us(4751, 2046, 42, "Xception"),
		us(23778, 9729, 209, "SSDMobilenet"),
		us(12088, 4412, 105, "EfficientNetB4"),
		us(7008, 159, 56, "BERT"),
	}
}

// A100 returns table 6: profiles on an NVIDIA A100.
// α and β are in µs, SLOs in ms.
func A100() []Entry {
	return []Entry{
		us(54, 10546, 21, "DenseNet121"),
		us(304, 14345, 31, "DenseNet201"),
		us(289, 13365, 29, "DenseNet169"),
		us(135, 5560, 20, "ResNet50V2"),
		us(115, 4326, 20, "EfficientNetB0"),
		us(284, 8266, 20, "ResNet101"),
		us(390, 10449, 24, "ResNet152"),
		us(391, 8219, 20, "ResNet101V2"),
		us(196, 4072, 20, "MobileNetV3Large"),
		us(291, 5797, 20, "EfficientNetB1"),
		us(268, 5172, 20, "ResNet50"),
		us(589, 10054, 24, "ResNet152V2"),
		us(190, 2892, 20, "MobileNetV2"),
		us(543, 7596, 20, "EfficientNetV2B3"),
		us(1112, 15270, 39, "InceptionResNetV2"),
		us(443, 5929, 20, "EfficientNetV2B1"),
		us(536, 6860, 20, "NASNetMobile"),
		us(377, 4272, 20, "EfficientNetV2B0"),
		us(520, 5333, 20, "EfficientNetB2"),
		us(315, 3211, 20, "MobileNetV3Small"),
		us(913, 6732, 20, "InceptionV3"),
		us(285, 1901, 20, "MobileNet"),
		us(1454, 7378, 26, "EfficientNetV2S"),
		us(901, 4532, 20, "EfficientNetV2B2"),
		us(660, 2252, 20, "VGG16"),
		us(1239, 4205, 20, "EfficientNetB3"),
		us(801, 2638, 20, "Xception"),
		us(893, 2181, 20, "VGG19"),
		us(3464, 7154, 42, "NASNetLarge"),
		us(4479, 6861, 49, "EfficientNetV2M"),
		us(2881, 4103, 31, "EfficientNetB4"),
		us(7520, 6675, 73, "EfficientNetV2L"),
		us(6121, 2283, 53, "EfficientNetB5"),
		us(19448, 4442, 164, "SSDMobilenet"),
		us(9754, 1984, 82, "EfficientNetB6"),
		us(16339, 2751, 136, "EfficientNetB7"),
		us(7353, 222, 59, "BERT"),
	}
}
