module example.com/embed

go 1.26.0

require downbeat.dev v0.0.0

replace downbeat.dev => ../..
